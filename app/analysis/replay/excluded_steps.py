"""Steps excluded from the verdict because all ranks are slow: warm-up, compilation, profilers.

No single worker makes such a step slow, so the step counts only as lost time. Stretches of slow
steps, and slow steps that are more than a quarter of all steps, are a property of the job and are
kept.
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
from app.analysis.replay.robust_statistics import MAD_TO_SD, median


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds by which steps count as odd."""

    most: float = 0.25  # Largest share of a session that can be odd steps.
    fewest: int = 4  # Fewest steps of a session (or shape) with odd ones.
    longest: int = 2  # Most consecutive odd steps; a longer stretch belongs to the job.
    warm_up: int = 5  # The same at the start of a recorded window.
    # In an odd step the computations of nearly all ranks take at least `times` as long as usual; or
    # `excess` times as long, if a single computation takes `single` times as long as usual.
    times: float = 1.08
    excess: float = 1.05
    single: float = 4.0
    alike: float = 0.1  # Share of ranks that may compute less.
    # The logarithm of an odd step's slowdown is at least `apart` times that of any other step, and
    # at least `deviations` standard deviations over steps, since microbatches of different lengths
    # also make steps differ.
    apart: float = 2.0
    deviations: float = 6.0
    # In an odd first step of a window, the begins of ranks spread over at least `begin` times the
    # computing time of a step, and over `begin_apart` times their spread in any other step.
    begin: float = 0.25
    begin_apart: float = 4.0


THRESHOLDS: Final = Thresholds()

# Number of steps with which the computations of a suspect step are compared.
_SAMPLE: Final = 31
_TINY_NS: Final = 1.0
_LEAST: Final = 1e-6
_LONGER: Final = "all ranks compute {times:.1f}× as long as in other steps"
_ONE_LONGER: Final = "a computation takes {times:.0f}× as long as in other steps, on all ranks"


@dataclass(frozen=True, slots=True, eq=False)
class _Session:
    """All steps of a draft, in ascending order; arrays have the shape (steps, …, workers)."""

    numbers: IntArray  # (steps,)
    group: IntArray  # (steps,): index of the step's layout
    place: IntArray  # (steps,): index of the step in its layout
    computing_ns: FloatArray  # (steps, workers): mean duration of a computation
    begins_ns: FloatArray  # (steps, workers): first start, relative to the step's begin

    @property
    def opens(self) -> NDArray[np.bool_]:
        """Return which steps begin a window of consecutive recorded steps, shape (steps,).

        If most steps have no recorded previous step, for example because steps are sampled, only
        the first step begins a window.
        """
        opens = np.ones(len(self.numbers), dtype=bool)
        np.not_equal(self.numbers[1:] - self.numbers[:-1], 1, out=opens[1:])
        many = opens.sum() > max(THRESHOLDS.most * len(opens), 1)
        return np.asarray(np.arange(len(opens)) == 0 if many else opens)


def find_odd_steps(draft: Draft) -> tuple[DroppedStep, ...]:
    """Return the steps that are slow on all ranks, with reasons; no steps if there are too many."""
    if any(layout.padding is not None for layout in draft.layouts):
        # Durations are filled up to the largest number of microbatches of any DP rank, so that a
        # step is not odd because it has more microbatches.
        padded = [
            replace(layout, duration_ns=filled(layout, layout.duration_ns))
            for layout in draft.layouts
        ]
        draft = replace(draft, layouts=tuple(padded))
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
    odd, opens = sorted(reasons), session.opens
    kept: list[int] = []
    for run in np.split(odd, np.flatnonzero(np.diff(odd) != 1) + 1):
        most = THRESHOLDS.warm_up if opens[run[0]] else THRESHOLDS.longest
        if len(run) <= most:
            kept += run.tolist()
    # Long stretches of slow steps, and many slow steps, are a property of the job.
    if len(kept) > -(-count * THRESHOLDS.most // 1) or count - len(kept) < THRESHOLDS.fewest - 1:
        return ()
    return tuple(DroppedStep(int(session.numbers[step]), reasons[step]) for step in kept)


def _session_of(layouts: Sequence[Layout]) -> _Session:
    numbers = np.concatenate([layout.steps for layout in layouts])
    order = np.argsort(numbers)
    return _Session(
        numbers=numbers[order],
        group=np.repeat(np.arange(len(layouts)), [len(item.steps) for item in layouts])[order],
        place=np.concatenate([np.arange(len(item.steps)) for item in layouts])[order],
        computing_ns=np.concatenate([_computing(item) for item in layouts])[order],
        begins_ns=np.concatenate([_first_starts(item) for item in layouts])[order],
    )


def _computing(layout: Layout) -> FloatArray:
    """Return the mean duration of the computations of each worker, shape (steps, workers), ns."""
    times = np.zeros((layout.pp, len(layout.steps), layout.dp))
    for stage in range(layout.pp):
        by_type = _computations(layout, stage)
        for nodes in by_type:
            # Nodes of a type and stage are contiguous, so a slice avoids a copy.
            times[stage] += layout.duration_ns[nodes[0] : nodes[-1] + 1].sum(axis=0)
        times[stage] /= max(sum(map(len, by_type)), 1)
    return _by_worker(times)


def _computations(layout: Layout, stage: int) -> list[NDArray[np.intp]]:
    """Return the nodes of each computation type of a stage; types without nodes are left out."""
    by_type = (layout.of(name, stage) for name in COMPUTE if name in layout.op_names)
    return [nodes for nodes in by_type if len(nodes)]


def _first_starts(layout: Layout) -> FloatArray:
    """Return each worker's first start in each step, shape (steps, workers), ns."""
    begins = np.zeros((layout.pp, len(layout.steps), layout.dp))
    for stage in range(layout.pp):
        nodes = layout.nodes.on(stage)
        if len(nodes):
            begins[stage] = layout.start_ns[nodes[layout.launch[nodes].argmin()]]
    return _by_worker(begins)


def _by_worker(times: FloatArray) -> FloatArray:
    """Reshape an array (pp, steps, dp) to (steps, workers)."""
    return times.transpose(1, 0, 2).reshape(times.shape[1], -1)


def _without_waiting(draft: Draft) -> tuple[Layout, ...]:
    """Return layouts whose computations exclude the waiting for collectives inside them.

    With this waiting, a single slow rank would make the computations of all other ranks long.
    """
    nested = [
        find_nested(layout, only_waits=draft.recording.only_waits) for layout in draft.layouts
    ]
    if all(item is None for item in nested):
        return draft.layouts
    return tuple(
        layout if item is None else take_out(layout, item[0])
        for layout, item in zip(draft.layouts, nested, strict=True)
    )


def _common(times_ns: FloatArray) -> FloatArray:
    """Return the slowdown that nearly all workers exceed or reach in each step, shape (steps,)."""
    typical = np.maximum(median(times_ns), _TINY_NS)
    return _of_nearly_all(times_ns / typical)


def _of_nearly_all(values: FloatArray) -> FloatArray:
    """Return the value that all workers (last axis) but the share `alike` exceed or reach."""
    few = int(values.shape[-1] * THRESHOLDS.alike)
    return np.asarray(np.partition(values, few, axis=-1)[..., few])


def _computing_longer(
    layouts: Sequence[Layout], session: _Session, common: FloatArray
) -> dict[int, str]:
    """Return the indices of steps in which nearly all ranks compute for longer, and the reasons."""
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
        # This shape has too few steps for a comparison, so only the first step of a window can be
        # odd.
        most = float(common[~longer].max(initial=1.0))
        far = common[mine] >= max(THRESHOLDS.times, most**THRESHOLDS.apart)
        reasons |= {
            step: _LONGER.format(times=common[step]) for step in mine[far & session.opens[mine]]
        }
    return reasons


@dataclass(frozen=True, slots=True, eq=False)
class _Comparison:
    """Ratio of the durations of computations to their medians, in some steps of one shape."""

    places: IntArray  # (compared steps,): index of each step, ascending
    level: FloatArray  # (compared steps, pp, dp): median ratio of the step's computations
    # Shape (compared steps, pp, dp): largest ratio. With a single DP rank only the first
    # computation of each type is compared, since microbatches may differ in length.
    peak: FloatArray

    @classmethod
    def of(cls, layout: Layout, longer: IntArray) -> _Comparison:
        """Compare the steps at the indices `longer` with a sample of all steps."""
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
        """Return the reason why the step at index `place` is odd; None if it is not odd."""
        at = int(np.searchsorted(self.places, place))
        level, peak = _of_all(self.level), _of_all(self.peak)
        lanes = np.log(np.maximum(self.level.min(axis=1), _LEAST))
        deviation = MAD_TO_SD * float(np.median(np.abs(lanes - np.median(lanes))))
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
    """Return first steps of windows that ranks begin at very different times, with reasons."""
    first = session.opens
    if session.begins_ns.shape[1] == 1:
        return {}
    unusual_ns = session.begins_ns - median(session.begins_ns[~first])
    # Ranks that begin together do not begin apart, even if a rank begins all later steps late.
    apart_ns = np.minimum(np.ptp(unusual_ns, axis=1), np.ptp(session.begins_ns, axis=1))
    # Computing time in a step of the worker that computes for longest
    computes = layout.of_types(*(name for name in COMPUTE if name in layout.op_names))
    computations = int(np.bincount(layout.nodes.pp[computes]).max())
    step_ns = float(median(session.computing_ns).max()) * computations
    usual_ns = float(apart_ns[~first].max())
    least_ns = max(THRESHOLDS.begin * step_ns, THRESHOLDS.begin_apart * usual_ns)
    return {
        step: f"ranks begin it up to {apart_ns[step] / 1e9:.1f} s apart, as where profilers start"
        for step in np.flatnonzero(first & (apart_ns >= least_ns)).tolist()
    }
