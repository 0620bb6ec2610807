"""The four ranks: each runs all checks in turn, and writes its results.

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
from functools import partial
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
    loop.posted,
)


def main() -> int:
    """Fork a process for each rank, and return 0 if all succeed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--time-limit-s", type=int, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    signal.alarm(given.time_limit_s)
    for launch, dies_with in (
        (_check, failing.EXIT),
        (_die_in_step, -signal.SIGKILL),
        (_die_at_boundary, -signal.SIGKILL),
    ):
        if not _launched(partial(launch, given.directory), dies_with, given.time_limit_s):
            return 1
    return 0


def _launched(run: Callable[[int], None], dies_with: int, time_limit_s: int) -> bool:
    """Return whether all ranks ended as planned; the last one is killed on purpose."""
    ranks = {_fork(run, rank, time_limit_s): rank for rank in range(_RANKS)}
    failed = False
    while ranks:
        pid, status = os.wait()
        meant = dies_with if ranks.pop(pid) == failing.DIES else 0
        if os.waitstatus_to_exitcode(status) == meant or failed:
            continue
        failed = True
        for other in ranks:
            os.kill(other, signal.SIGTERM)
    return not failed


def _fork(run: Callable[[int], None], rank: int, time_limit_s: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(time_limit_s)
    code = 1
    try:
        run(rank)
        code = 0
    except BaseException:  # noqa: BLE001 - told here, since this process ends without a caller
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _check(directory: Path, rank: int) -> None:
    store = dist.FileStore(str(directory / "store"), _RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=_RANKS, timeout=_TIMEOUT)
    found: dict[str, Any] = {}
    for check in CHECKS:
        found[check.__name__] = check()
        dist.barrier()
    path = directory / f"{rank}.json"
    path.write_text(json.dumps(found))
    dist.destroy_process_group()
    # Last, because these checks end ranks.
    _add(directory, rank, "lost_rank", failing.lost_rank(directory, rank, _RANKS))


def _die_in_step(directory: Path, rank: int) -> None:
    _add(directory, rank, "killed_in_step", failing.killed_in_step(directory, rank, _RANKS))


def _die_at_boundary(directory: Path, rank: int) -> None:
    _add(directory, rank, "killed_at_boundary", failing.killed_at_boundary(directory, rank, _RANKS))


def _add(directory: Path, rank: int, check: str, found: Any) -> None:  # noqa: ANN401 - JSON
    path = directory / f"{rank}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {check: found}))


if __name__ == "__main__":
    sys.exit(main())
