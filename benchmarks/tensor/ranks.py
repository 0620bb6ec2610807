"""Runs a function on several ranks of one gloo group, as processes forked from this one."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import torch
import torch.distributed as dist

Result = TypeVar("Result")

RANKS: Final = 4
_NICENESS: Final = -10


class RankFailedError(Exception):
    """A rank did not do its part; what it said is on standard error."""


def on_ranks(function: Callable[[], Result]) -> list[Result]:
    """Return what the function returns on each of four ranks.

    Raises
    ------
    RankFailedError
        If a rank failed; the others are ended.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-bench-tp-") as name:
        directory = Path(name)
        ranks = {_fork(function, directory, rank) for rank in range(RANKS)}
        failed = False
        while ranks:
            pid, status = os.wait()
            ranks.discard(pid)
            if status and not failed:
                failed = True
                for other in ranks:
                    os.kill(other, signal.SIGTERM)
        if failed:
            raise RankFailedError
        # Written by these processes, a moment ago.
        return [pickle.loads((directory / str(rank)).read_bytes()) for rank in range(RANKS)]  # noqa: S301


def _fork(function: Callable[[], object], directory: Path, rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with suppress(PermissionError):
            # What mostly sleeps must not queue behind others' computing when it wakes.
            os.nice(_NICENESS)
        torch.set_num_threads(1)
        store = dist.FileStore(str(directory / "store"), RANKS)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
        (directory / str(rank)).write_bytes(pickle.dumps(function()))
        dist.destroy_process_group()
        code = 0
    except BaseException:  # noqa: BLE001 - told here, since this process ends without a caller
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
