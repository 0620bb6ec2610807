"""The four ranks: each does every check in turn, and writes what it found.

Run with an interpreter that has PyTorch: ``python -m tests.tensor.worker --directory DIR``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from tests.tensor.worker import adapters, checks, failing, loop, pruning

_RANKS: Final = 4
_TIMEOUT: Final = timedelta(seconds=60)

CHECKS: Final[tuple[Callable[[], Any], ...]] = (
    checks.bit_identity,
    checks.loss_free,
    checks.pruned,
    checks.formula,
    checks.imputed,
    checks.replicated,
    checks.shares,
    checks.pre_tested,
    checks.checkpoints,
    pruning.priorities,
    pruning.ratios,
    pruning.restored_state,
    adapters.megatron_layers,
    adapters.refused_layers,
    loop.one_boundary,
    loop.refusals,
    loop.dead_service,
    loop.switched_off,
)


def main() -> int:
    """Fork a process a rank, and return 0 if each did its part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--time-limit-s", type=int, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    signal.alarm(given.time_limit_s)
    ranks = {_fork(given.directory, rank, given.time_limit_s): rank for rank in range(_RANKS)}
    failed = False
    while ranks:
        pid, status = os.wait()
        rank = ranks.pop(pid)
        if failing.meant(rank, os.waitstatus_to_exitcode(status)) or failed:
            continue
        failed = True
        for other in ranks:
            os.kill(other, signal.SIGTERM)
    return int(failed)


def _fork(directory: Path, rank: int, time_limit_s: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(time_limit_s)
    code = 1
    try:
        _run(directory, rank)
        code = 0
    except BaseException:  # noqa: BLE001 - told here, since this process ends without a caller
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(directory: Path, rank: int) -> None:
    store = dist.FileStore(str(directory / "store"), _RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=_RANKS, timeout=_TIMEOUT)
    found: dict[str, Any] = {}
    for check in CHECKS:
        found[check.__name__] = check()
        dist.barrier()
    path = directory / f"{rank}.json"
    path.write_text(json.dumps(found))
    dist.destroy_process_group()
    # Last, because it ends ranks.
    found["lost_rank"] = failing.lost_rank(directory, rank, _RANKS)
    path.write_text(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
