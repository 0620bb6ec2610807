"""Small jobs of the second physics with custom faults, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np

from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.trace.model import Trace
from tests.oracles.physics.execute import execute
from tests.oracles.physics.record import record
from tests.oracles.physics.shape import Posting, Schedule, Shape
from tests.oracles.physics.world import World, draw_world
from tests.referee.judging import trace_of

PLAIN: Final = Shape(
    dp=4,
    pp=4,
    vpp=1,
    tp=1,
    microbatches=8,
    steps=12,
    schedule=Schedule.ONE_F_ONE_B,
    posting=Posting.OVERLAP,
    host_waits=False,
)
INTERLEAVED: Final = replace(PLAIN, schedule=Schedule.INTERLEAVED, vpp=3)
WITHOUT_SCATTER: Final = replace(PLAIN, scatter_recorded=False)

Strike = Callable[[World], World | None]


@cache
def healthy(shape: Shape, seed: int = 3) -> World:
    """Return the times of a healthy job, which callers must not change."""
    return draw_world(shape, np.random.default_rng(seed))


def struck(shape: Shape, strike: Strike, seed: int = 3) -> tuple[Trace, float]:
    """Return a recording of a job with a fault, and its true slowdown.

    `strike` changes the times of a healthy job in place, or returns new ones.
    """
    world = healthy(shape, seed).copy()
    world = strike(world) or world
    execution = execute(world)
    typical_s = execute(healthy(shape, seed)).step_s.sum()
    return trace_of(record(world, execution, gap_s=1e-3)), float(execution.step_s.sum() / typical_s)


def report_of(shape: Shape, strike: Strike, seed: int = 3) -> tuple[Report, float]:
    """Return the report of a job with a fault, and its true slowdown."""
    trace, slowdown = struck(shape, strike, seed)
    return analyze(trace).report, slowdown


def pass_s(world: World) -> float:
    """Return the typical duration of a forward pass in s."""
    return float(np.median(world.forward_s))


def names(report: Report) -> list[str]:
    """Return the names of the causes in a report."""
    return [cause.cause for cause in report.causes]
