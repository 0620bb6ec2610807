"""Jobs of a seed: faults of known kinds, and all that is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.pulse.columns import Pulses, joined
from app.analysis.synthesis.pulses.events import EVENTS
from app.analysis.synthesis.pulses.faults import FAULTS
from app.analysis.synthesis.pulses.job import PulseDials, PulseJob, PulseTruth
from app.analysis.synthesis.randomness import stream

_SHAPES: Final = ((8, 1), (16, 1), (4, 2), (8, 4), (32, 1), (2, 4), (64, 1), (16, 2))
# A fault begins here at the earliest, and leaves as many steps at least.
_BEGINS: Final = 120
_LEAST_LEFT: Final = 200


@dataclass(frozen=True, slots=True, eq=False)
class DrawnPulse:
    """Rows, and the truth about them.

    Parameters
    ----------
    hosts : dict of int to str
        Empty where hosts are not known.
    rank_hours : float
        Hours times ranks.
    """

    rows: Pulses
    hosts: dict[int, str]
    truths: tuple[PulseTruth, ...]
    dials: PulseDials
    rank_hours: float
    step_s: float


def draw_dials(rng: np.random.Generator, steps: int, *, lengths: bool) -> PulseDials:
    """Draw the sizes and the noise of a job."""
    dp, pp = _SHAPES[int(rng.integers(len(_SHAPES)))]
    return PulseDials(
        dp,
        pp,
        steps,
        step_s=float(rng.choice([0.03, 0.3, 1.0, 1.0, 3.0])),
        noise=float(rng.uniform(0.005, 0.03)),
        offsets=float(rng.uniform(0, 0.015)),
        lengths=float(rng.uniform(0.05, 0.3)) if lengths else 0.0,
    )


def draw_pulse(  # noqa: PLR0913 - what is drawn
    seed: int,
    faults: Sequence[str],
    *,
    steps: int = 600,
    factor: float = 1.2,
    lengths: bool = False,
    step_s: float | None = None,
) -> DrawnPulse:
    """Draw a job with faults of some kinds (`FAULTS`), one after the other, and random events."""
    rng = stream(seed, "pulse", *faults)
    dials = draw_dials(rng, steps, lengths=lengths)
    dials = replace(dials, step_s=step_s or dials.step_s)
    if "host" in faults and dials.world <= dials.host_ranks:
        # A job of one host has no peers for it.
        dials = replace(dials, dp=2 * dials.host_ranks, pp=1)
    job = PulseJob.healthy(dials, rng)
    for name in EVENTS:
        # Curricula move what faults are measured by; those of healthy jobs suffice.
        if rng.random() < 0.4 and not (faults and name == "curriculum"):  # noqa: PLR2004
            EVENTS[name](job, rng)
    truths = []
    for number, name in enumerate(faults):
        span = (steps - _BEGINS - _LEAST_LEFT) // len(faults)
        begin = _BEGINS + span * number + int(rng.integers(max(1, span)))
        truths.append(FAULTS[name](job, rng, begin, factor))
    for truth in truths:
        # What is never sent cannot be noticed.
        job.missing[:, list(truth.ranks)] = False
    parts = [job.rows()]
    if not faults and rng.random() < 0.3:  # noqa: PLR2004
        parts.append(_again(job, rng, parts[0]))
    rows = joined(parts)
    hours = float(len(rows) * np.median(job.step_ns) / 3.6e12)
    hosts = job.hosts if rng.random() < 0.8 else {}  # noqa: PLR2004
    return DrawnPulse(rows, hosts, tuple(truths), dials, hours, float(np.median(job.step_ns) / 1e9))


def _again(job: PulseJob, rng: np.random.Generator, before: Pulses) -> Pulses:
    """Start a job once more from an earlier step: a new attempt, or a smaller or larger world.

    In the same attempt ranks get other numbers: what was usual for one is that of another.
    """
    dials = job.dials
    if rng.random() < 0.5:  # noqa: PLR2004
        dp = max(2, dials.dp + int(rng.choice([-1, 1, 2])))
        dials = replace(dials, dp=dp, steps=max(200, dials.steps // 2))
    after = PulseJob.healthy(dials, rng)
    after.attempt = job.attempt + int(rng.integers(0, 2))
    after.first_step = max(0, job.dials.steps - int(rng.integers(5, 60)))
    after.start_ns = int(before.time_ns[-1] + rng.uniform(5, 300) * 1e9)
    after.computing[0] *= 5
    return after.rows()
