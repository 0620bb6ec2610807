"""Runs functions in forked processes: as ranks of one gloo group, or each by itself."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import torch
import torch.distributed as dist

Result = TypeVar("Result")

RANKS: Final = 4
_NICENESS: Final = -10


class ProcessFailedError(Exception):
    """A process did not do its part; what it said is on standard error."""


def on_ranks(function: Callable[[], Result]) -> list[Result]:
    """Return what the function returns on each of four ranks.

    Raises
    ------
    ProcessFailedError
        If a rank failed; the others are ended.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-bench-tp-") as name:
        store = str(Path(name) / "store")
        return in_processes([partial(_on_rank, function, store, rank) for rank in range(RANKS)])


def _on_rank(function: Callable[[], Result], store: str, rank: int) -> Result:
    with suppress(PermissionError):
        # What mostly sleeps must not queue behind others' computing when it wakes.
        os.nice(_NICENESS)
    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    found = function()
    dist.destroy_process_group()
    return found


def in_processes(functions: Sequence[Callable[[], Result]]) -> list[Result]:
    """Return what each function returns in a process of its own.

    Raises
    ------
    ProcessFailedError
        If one failed; the others are ended.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-bench-tp-") as name:
        directory = Path(name)
        running = {_fork(one, directory / str(n)) for n, one in enumerate(functions)}
        failed = False
        while running:
            pid, status = os.wait()
            running.discard(pid)
            if status and not failed:
                failed = True
                for other in running:
                    os.kill(other, signal.SIGTERM)
        if failed:
            raise ProcessFailedError
        # Written by these processes, a moment ago.
        return [pickle.loads((directory / str(n)).read_bytes()) for n in range(len(functions))]  # noqa: S301


def _fork(function: Callable[[], object], result: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        result.write_bytes(pickle.dumps(function()))
        code = 0
    except BaseException:  # noqa: BLE001 - told here, since this process ends without a caller
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
