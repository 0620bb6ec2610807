"""Processes of a job, forked after the imports, with a higher priority than other programs."""

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
    """Fork a process for each rank, and return 0 if all succeed.

    If one fails, the others are ended, because they would wait for it.

    Parameters
    ----------
    alone : bool
        Whether no other job is measured at the same time, which this one would delay.
    """
    _go_first(at_once=alone)
    # Garbage of the imports must not be collected during the job.
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
    """Run the block at a low priority, so that it does not delay ranks that wake up.

    A process with a high priority keeps a processor until it sleeps: a rank that writes its
    recording would delay other ranks within the step that they record.
    """
    if sys.platform != "linux" or (policy := os.sched_getscheduler(0)) == os.SCHED_OTHER:
        yield
        return
    priority = os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    yield
    os.sched_setscheduler(0, policy, priority)


def _go_first(*, at_once: bool) -> None:
    """Give this process and its children a high, or even real-time, priority.

    They mostly sleep, like the processors of a job whose accelerators compute: when they wake, they
    must not wait for other programs. Only root may set this; other users' processes have to wait.
    """
    with suppress(PermissionError, AttributeError):
        os.nice(_NICENESS)
        if os.getsid(0) == os.getpid():
            # If Linux schedules by session, a nice value applies within its session only.
            with suppress(FileNotFoundError):
                Path("/proc/self/autogroup").write_text(str(_NICENESS))
        if at_once:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _fork(rank: int, run: Callable[[int], None], limit_s: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    # A forked child does not inherit its parent's alarm.
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
