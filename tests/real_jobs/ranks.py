"""Processes of a job, forked after the imports, that run before whatever else computes."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_NICENESS: Final = -10


def run_ranks(
    ranks: Iterable[int], run: Callable[[int], None], limit_s: int, *, alone: bool = False
) -> int:
    """Fork a process a rank, and return 0 if each did its part.

    Where one fails the others are ended: they would wait for it.

    Parameters
    ----------
    alone : bool
        No other job is measured at the same time, which what starts here would hold up.
    """
    _go_first(at_once=alone)
    # Collections of what was imported are no part of the job.
    gc.collect()
    gc.freeze()
    left = {_fork(rank, run, limit_s) for rank in ranks}
    failed = False
    while left:
        pid, status = os.wait()
        left.remove(pid)
        if status and not failed:
            failed = True
            for other in left:
                os.kill(other, signal.SIGTERM)
    return int(failed)


@contextmanager
def aside() -> Iterator[None]:
    """Let what this thread does here wait for whichever rank wakes, as a profiler's files may.

    Who runs as soon as it wakes holds a processor until it sleeps: a rank that writes its recording
    would keep others from the end of the step that they record.
    """
    if sys.platform != "linux" or (policy := os.sched_getscheduler(0)) == os.SCHED_OTHER:
        yield
        return
    priority = os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    yield
    os.sched_setscheduler(0, policy, priority)


def _go_first(*, at_once: bool) -> None:
    """Let this process and its children run before others, or even as soon as they wake.

    They mostly sleep, as the processors of a job do whose accelerators compute: when they wake they
    must not queue behind what others compute. Root may say so; elsewhere they queue.
    """
    with suppress(PermissionError, AttributeError):
        os.nice(_NICENESS)
        if os.getsid(0) == os.getpid():
            # Where Linux shares the processors among sessions, niceness holds within one only.
            with suppress(FileNotFoundError):
                Path("/proc/self/autogroup").write_text(str(_NICENESS))
        if at_once:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _fork(rank: int, run: Callable[[int], None], limit_s: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    # A child has no alarm of its parent's.
    signal.alarm(limit_s)
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
