"""Processes that judge jobs, each of which loads the compiled loops once."""

from __future__ import annotations

import signal
from multiprocessing import get_context
from multiprocessing.pool import Pool

from app.analysis.replay.engine.executors import warm_up


def judging(processes: int) -> Pool:
    """Return processes that judge jobs, which the caller stops."""
    return get_context("spawn").Pool(processes, initializer=_begin)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warm_up()
