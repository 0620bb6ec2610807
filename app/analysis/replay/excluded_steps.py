"""Steps excluded from the verdict: warm-up, compilation, start of profilers, on all ranks.

No worker makes such a step slow, so it counts as time only. What all ranks do for a stretch of
steps, or in more than a quarter of them, belongs to the job and stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.adaptations.candidate import Draft
from app.analysis.replay.adaptations.nested_collectives import find_nested, take_out
from app.analysis.replay.layout.dense import DroppedStep, FloatArray, IntArray, Layout
from app.analysis.replay.layout.pipeline import COMPUTE
from app.analysis.replay.layout.step_shapes import filled
from app.analysis.replay.robust_statistics import median


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether a step is unlike the others."""

    most: float = 0.25  # More steps than this share of a session are no exceptions.
    fewest: int = 4  # Of fewer steps none can be told from the others.
    longest: int = 2  # That many in a row are; a longer stretch is a spell of the job.
    warm_up: int = 5  # At the start of a recorded window that many may be.
    # Nearly all ranks compute `times` as long, or `excess` times with a computation that takes
    # `single` times as long.
    times: float = 1.08
    excess: float = 1.05
    single: float = 4.0
    alike: float = 0.1  # Nearly all are all but this share.
    # The logarithm of that is this many times what it is in any other step, and this many standard
    # deviations over steps: microbatches of different lengths make steps differ, too.
    apart: float = 2.0
    deviations: float = 6.0
    # Ranks begin a window's first step apart by this share of what a step computes, and by this
    # many times what they are apart in any other step.
    begin: float = 0.25
    begin_apart: float = 4.0


THRESHOLDS: Final = Thresholds()

# Steps that others are compared with, where each of their operations is looked at.
_SAMPLE: Final = 31
_TINY_NS: Final = 1.0
_LEAST: Final = 1e-6
# Standard deviations of normal values in their median absolute one.
_PER_MAD: Final = 1.4826
_LONGER: Final = "all ranks compute {times:.1f}× as long as in other steps"
_ONE_LONGER: Final = "a computation takes {times:.0f}× as long as in other steps, on all ranks"


@dataclass(frozen=True, slots=True, eq=False)
class _Session:
    """All steps of a draft, ascending; arrays of shape (steps, …, workers)."""

    numbers: IntArray  # (steps,)
    group: IntArray  # (steps,): index of the step's layout
    place: IntArray  # (steps,): and of the step in it
    computing_ns: FloatArray  # (steps, workers): of a mean computation
    begins_ns: FloatArray  # (steps, workers): when each begins, from the step's begin

    @property
    def opens(self) -> NDArray[np.bool_]:
        """Return which steps begin a window of consecutive ones, shape (steps,).

        Where most steps are recorded alone, that is how they are recorded: only the first does.
        """
        opens = np.ones(len(self.numbers), dtype=bool)
        np.not_equal(self.numbers[1:] - self.numbers[:-1], 1, out=opens[1:])
        many = opens.sum() > max(THRESHOLDS.most * len(opens), 1)
        return np.asarray(np.arange(len(opens)) == 0 if many else opens)


def find_odd_steps(draft: Draft) -> tuple[DroppedStep, ...]:
    """Return the steps that are unlike the others on all ranks, and why; none where many are."""
    draft = _filled(draft)
    session = _session_of(draft.layouts)
    count = len(session.numbers)
    if count < THRESHOLDS.fewest:
        return ()
    common = _common(session.computing_ns)
    reasons = _beginning(draft.layouts[0], session)
    if common.max() >= THRESHOLDS.excess:
        layouts = _without_waiting(draft)
        if layouts is not draft.layouts:
            session = _session_of(layouts)
            common = _common(session.computing_ns)
        reasons |= _computing_longer(layouts, session, common)
    if not reasons:
        return ()
    kept = _exceptions(session, sorted(reasons))
    if count - len(kept) < THRESHOLDS.fewest - 1:
        return ()
    return tuple(DroppedStep(int(session.numbers[step]), reasons[step]) for step in kept)


def _filled(draft: Draft) -> Draft:
    """Return a draft whose DP ranks all run as many microbatches: steps of more are not odd."""
    if all(layout.padding is None for layout in draft.layouts):
        return draft
    layouts = [
        replace(layout, duration_ns=filled(layout, layout.duration_ns)) for layout in draft.layouts
    ]
    return replace(draft, layouts=tuple(layouts))


def _session_of(layouts: Sequence[Layout]) -> _Session:
    numbers = np.concatenate([layout.steps for layout in layouts])
    order = np.argsort(numbers)
    return _Session(
        numbers=numbers[order],
        group=np.repeat(np.arange(len(layouts)), [len(one.steps) for one in layouts])[order],
        place=np.concatenate([np.arange(len(one.steps)) for one in layouts])[order],
        computing_ns=np.concatenate([_computing(one) for one in layouts])[order],
        begins_ns=np.concatenate([_begins(one) for one in layouts])[order],
    )


def _computing(layout: Layout) -> FloatArray:
    """Return what a mean computation takes on each worker, shape (steps, workers), ns."""
    times = np.zeros((layout.pp, len(layout.steps), layout.dp))
    for stage in range(layout.pp):
        found = _computations(layout, stage)
        for nodes in found:
            # neighbors: no copy
            times[stage] += layout.duration_ns[nodes[0] : nodes[-1] + 1].sum(axis=0)
        times[stage] /= max(sum(map(len, found)), 1)
    return _by_worker(times)


def _computations(layout: Layout, stage: int) -> list[NDArray[np.intp]]:
    found = (layout.of(name, stage) for name in COMPUTE if name in layout.op_names)
    return [nodes for nodes in found if len(nodes)]


def _begins(layout: Layout) -> FloatArray:
    """Return when each worker begins a step, shape (steps, workers), ns."""
    begins = np.zeros((layout.pp, len(layout.steps), layout.dp))
    for stage in range(layout.pp):
        nodes = layout.nodes.on(stage)
        if len(nodes):
            begins[stage] = layout.start_ns[nodes[layout.launch[nodes].argmin()]]
    return _by_worker(begins)


def _by_worker(times: FloatArray) -> FloatArray:
    """Return (pp, steps, dp) as (steps, workers)."""
    return times.transpose(1, 0, 2).reshape(times.shape[1], -1)


def _without_waiting(draft: Draft) -> tuple[Layout, ...]:
    """Return layouts without what computations wait for inside: for one rank all others do."""
    found = [find_nested(layout, only_waits=draft.recording.only_waits) for layout in draft.layouts]
    if all(one is None for one in found):
        return draft.layouts
    return tuple(
        layout if one is None else take_out(layout, one[0])
        for layout, one in zip(draft.layouts, found, strict=True)
    )


def _common(times_ns: FloatArray) -> FloatArray:
    """Return how many times its typical time nearly every worker takes at least, shape (steps,)."""
    typical = np.maximum(median(times_ns), _TINY_NS)
    return _of_nearly_all(times_ns / typical)


def _of_nearly_all(values: FloatArray) -> FloatArray:
    """Return what all but a few workers (last axis) reach."""
    few = int(values.shape[-1] * THRESHOLDS.alike)
    return np.asarray(np.partition(values, few, axis=-1)[..., few])


def _computing_longer(
    layouts: Sequence[Layout], session: _Session, common: FloatArray
) -> dict[int, str]:
    """Return the steps in which nearly all ranks compute longer, and what is said."""
    reasons: dict[int, str] = {}
    longer = common >= THRESHOLDS.excess
    for number, layout in enumerate(layouts):
        mine = np.flatnonzero(longer & (session.group == number))
        if len(layout.steps) >= THRESHOLDS.fewest:
            places = session.place[mine]
            reasons |= {
                step: reason
                for step, place in zip(mine.tolist(), places.tolist(), strict=True)
                for reason in [_Comparison.of(layout, places).reason(place, session.opens[step])]
                if reason is not None
            }
            continue
        # A first step of a shape of its own.
        most = float(common[~longer].max(initial=1.0))
        far = common[mine] >= max(THRESHOLDS.times, most**THRESHOLDS.apart)
        reasons |= {
            step: _LONGER.format(times=common[step]) for step in mine[far & session.opens[mine]]
        }
    return reasons


@dataclass(frozen=True, slots=True, eq=False)
class _Comparison:
    """Computations of some steps of one shape against what they typically take.

    Arrays of the shape (looked-at steps, pp, dp), or without pp of the stage where it is least.
    """

    places: IntArray  # (looked-at steps,): index of each step, ascending
    level: FloatArray  # how many times as long its computations take, their median
    # …and the longest of them; of one DP rank the longest first one, since microbatches may differ
    # in length
    peak: FloatArray

    @classmethod
    def of(cls, layout: Layout, longer: IntArray) -> _Comparison:
        """Compare steps with a sample of all."""
        count = len(layout.steps)
        sample = np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.intp)
        places = np.union1d(sample, longer)
        level = np.ones((len(places), layout.pp, layout.dp))
        peak = level.copy()
        for stage in range(layout.pp):
            parts = [layout.duration_ns[nodes][:, places] for nodes in _computations(layout, stage)]
            if parts:
                times = np.concatenate(parts)
                times /= np.maximum(median(times.swapaxes(0, 1)), _TINY_NS)[:, None]
                level[:, stage] = median(times)
                if layout.dp == 1:
                    times = times[np.cumsum([0, *map(len, parts[:-1])])]
                peak[:, stage] = times.max(axis=0)
        return cls(places, level, peak)

    def reason(self, place: int, opens: bool) -> str | None:  # noqa: FBT001 - of the step
        """Say what is odd about a step; None where nothing is."""
        at = int(np.searchsorted(self.places, place))
        level, peak = _of_all(self.level), _of_all(self.peak)
        lanes = np.log(np.maximum(self.level.min(axis=1), _LEAST))
        deviation = _PER_MAD * float(np.median(np.abs(lanes - np.median(lanes))))
        most = float(level[level < THRESHOLDS.times].max(initial=1.0))
        least = max(most**THRESHOLDS.apart, exp(THRESHOLDS.deviations * deviation))
        if level[at] >= max(THRESHOLDS.times, least):
            return _LONGER.format(times=level[at])
        if self.peak.shape[-1] == 1 and not opens:
            return None
        others = self.peak[peak < THRESHOLDS.single**0.5].min(axis=1)
        most = float(others.max(initial=1.0))
        if peak[at] >= max(THRESHOLDS.single, most**THRESHOLDS.apart):
            return _ONE_LONGER.format(times=peak[at])
        return None


def _of_all(values: FloatArray) -> FloatArray:
    return _of_nearly_all(values.reshape(len(values), -1))


def _beginning(layout: Layout, session: _Session) -> dict[int, str]:
    """Return the first steps of windows that ranks come to one after another, and what is said."""
    first = session.opens
    if session.begins_ns.shape[1] == 1:
        return {}
    apart_ns = np.ptp(session.begins_ns - median(session.begins_ns[~first]), axis=1)
    # what the busiest worker computes in a step
    computes = layout.of_types(*(name for name in COMPUTE if name in layout.op_names))
    computations = int(np.bincount(layout.nodes.pp[computes]).max())
    step_ns = float(median(session.computing_ns).max()) * computations
    usual_ns = float(apart_ns[~first].max())
    least_ns = max(THRESHOLDS.begin * step_ns, THRESHOLDS.begin_apart * usual_ns)
    return {
        step: f"ranks begin it up to {apart_ns[step] / 1e9:.1f} s apart, as where profilers start"
        for step in np.flatnonzero(first & (apart_ns >= least_ns)).tolist()
    }


def _exceptions(session: _Session, found: Sequence[int]) -> list[int]:
    """Return those of some steps that are exceptions: few, and in short stretches."""
    opens = session.opens
    kept: list[int] = []
    for run in np.split(found, np.flatnonzero(np.diff(found) != 1) + 1) if found else []:
        most = THRESHOLDS.warm_up if opens[run[0]] else THRESHOLDS.longest
        if len(run) <= most:
            kept += run.tolist()
    allowed = -(-len(opens) * THRESHOLDS.most // 1)
    return kept if len(kept) <= allowed else []
