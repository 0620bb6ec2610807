"""Late first launches of steps, lost time between steps, and the operations recorded there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.diagnosis.finding import Change, Evidence, Finding, GapLoss, LateLaunches
from app.analysis.diagnosis.late_launches import first_delays
from app.analysis.diagnosis.locations import StepView, Where
from app.analysis.diagnosis.observation import Observation, summed
from app.analysis.diagnosis.periodic_standstills import FEWEST, interval, listed
from app.analysis.diagnosis.session_view import Signs
from app.analysis.diagnosis.step_gaps import (
    StepGaps,
)
from app.analysis.quantities import NS, BoolArray, FloatArray, IntArray
from app.analysis.replay.layout.dense import (
    Layout,
)
from app.analysis.replay.layout.host_operations import HostOperations
from app.analysis.trace.model import BETWEEN_STEPS, DATA_LOADING
from app.analysis.wording import name_list, percent

# The evidence names the ranks whose wait is at least this share of the longest wait: all ranks load
# batches, so each of them waits a little.
_WAITS: Final = 0.1
# A rank records the loading of each batch if it does so in this share of the steps: the recording
# of a step may be cut.
_LOADS: Final = 0.8

# Times in ns by node, each of shape (steps, dp).
ByNode = Mapping[int, FloatArray]


def recorded_delays(signs: Signs, name: str) -> ByNode:
    """Return launch delays during recorded operations of a type between steps, by node, ns."""
    if signs.step_gaps is None or not len(signs.step_gaps.host_operations):
        return {}
    operations = signs.step_gaps.host_operations.of(name)
    return _delays(signs.observation, operations) if len(operations) else {}


def with_recorded(signs: Signs, name: str, finding: Finding | None) -> Finding | None:
    """Return a finding with the launch delays during recorded operations of a type added.

    Parameters
    ----------
    name : str
        The operation type, such as ``data-loading``.
    found : Finding or None
        The finding by signs in other operations.
    """
    recorded = recorded_delays(signs, name)
    if not recorded:
        return finding
    every = np.max(np.stack(list(recorded.values())), axis=0)
    layout = signs.observation.layout
    by_rank = every.sum(axis=0)
    ranks = np.flatnonzero(by_rank >= _WAITS * by_rank.max()).tolist()
    by_step = every.max(axis=1)
    steps = layout.steps[by_step > 0]
    apart = interval(layout.steps, by_step > 0)
    who = (
        "all DP ranks" if len(ranks) == layout.dp else name_list("DP rank", [str(r) for r in ranks])
    )
    often = f", every {apart} steps" if apart and len(steps) >= FEWEST else ""
    line = Evidence(
        f"Launches wait for {by_step[by_step > 0].mean() / 1e6:.0f} ms while {who} "
        f"{'is' if len(ranks) == 1 else 'are'} recorded to be at {name}, in "
        f"{listed(steps.tolist())}{often}",
        StepView(step=int(layout.steps[int(by_step.argmax())])),
    )
    late_ns = dict(recorded)
    if finding is None:
        where = Where(dp=ranks[0]) if len(ranks) == 1 < layout.dp else Where()
        finding = Finding(Change(), (), where)
    else:
        late_ns = summed([finding.launches.late_ns, recorded])
    return replace(
        finding,
        change=Change(on_time={node: late > 0 for node, late in late_ns.items()}),
        evidence=(*finding.evidence, line),
        launches=replace(finding.launches, late_ns=late_ns),
    )


def unnamed_first_delays(signs: Signs) -> dict[int, FloatArray]:
    """Return the first operations' delays outside recorded host operations, by node, ns."""
    late = signs.observation.memoize(first_delays)
    recorded = [of for name in BETWEEN_STEPS if (of := recorded_delays(signs, name))]
    if not recorded:
        return late
    return {
        node: np.maximum(delay - sum((of.get(node, 0.0) for of in recorded), 0.0), 0.0)
        for node, delay in late.items()
    }


def loading_recorded(signs: Signs) -> BoolArray:
    """Return which DP ranks record the loading of each batch, shape (dp,).

    Their steps wait for data only while they are recorded to load a batch.
    """
    layout = signs.observation.layout
    steps = np.zeros(layout.dp, dtype=np.int64)
    if signs.step_gaps is not None:
        loading = signs.step_gaps.host_operations.of(DATA_LOADING)
        recorded = np.unique(np.stack([loading.dp, loading.step]), axis=1)
        steps += np.bincount(recorded[0], minlength=layout.dp)[: layout.dp]
    return np.asarray(steps >= _LOADS * len(layout.steps))


def unloaded_first_delays(signs: Signs) -> dict[int, FloatArray]:
    """Return the part of `unnamed_first_delays` that cannot be a wait for data, by node, ns."""
    recorded = loading_recorded(signs)
    if not recorded.any():
        return {}
    return {
        node: np.where(recorded, delay, 0.0) for node, delay in unnamed_first_delays(signs).items()
    }


def _delays(observation: Observation, operations: HostOperations) -> dict[int, FloatArray]:
    """Return delays by host operations: of the next launches, and of first operations."""
    layout = observation.layout
    first = observation.memoize(first_delays)
    late: dict[int, FloatArray] = {}
    for stage in range(layout.pp):
        nodes = layout.nodes.on(stage)
        begins = [node for node in first if layout.nodes.pp[node] == stage]
        left = np.flatnonzero(operations.pp == stage)
        # An operation at the end of a step delays launches of the next step.
        for following in (0, 1):
            if not len(left):
                break
            number = operations.step[left] + following
            step = np.minimum(np.searchsorted(layout.steps, number), len(layout.steps) - 1)
            begin_ns = layout.begin_ns[step]
            placed = _InSteps(
                step,
                operations.dp[left],
                operations.start_ns[left] - begin_ns,
                operations.end_ns[left] - begin_ns,
            )
            exists = layout.steps[step] == number
            there, at = placed.chosen(exists), np.flatnonzero(exists)
            of_next = _next_launches(layout, nodes, there)
            for node in sorted({*of_next[of_next >= 0].tolist(), *begins}):
                own = late.setdefault(node, np.zeros(layout.start_ns.shape[1:]))
                mine = (of_next == node) | (node in begins)
                _add_delays(observation, node, there.chosen(mine), own)
            left = np.delete(left, at[of_next >= 0])
    return {node: late_ns for node, late_ns in late.items() if late_ns.any()}


@dataclass(frozen=True, slots=True, eq=False)
class _InSteps:
    """Host operations in steps of the most frequent shape; times from the step's begin, ns."""

    step: IntArray  # index of the step
    dp: IntArray
    start_ns: FloatArray
    end_ns: FloatArray

    def chosen(self, mine: BoolArray) -> _InSteps:
        """Return the host operations that a mask selects."""
        return _InSteps(self.step[mine], self.dp[mine], self.start_ns[mine], self.end_ns[mine])


def _next_launches(layout: Layout, nodes: IntArray, operations: _InSteps) -> IntArray:
    """Return, for each operation, the node that launches next; -1 without a next launch."""
    if not len(operations.step):
        return np.empty(0, dtype=np.int64)
    starts = layout.start_ns[nodes[:, None], operations.step, operations.dp]
    after = np.where(_follows(starts, operations), starts, np.inf)
    first = after.argmin(axis=0)
    return np.where(np.isfinite(after.min(axis=0)), nodes[first], -1)


def _follows(starts: FloatArray, operations: _InSteps) -> BoolArray:
    # A launch in the second half of an operation counts as following it: the clocks of host and
    # device are read one after the other, so that a launch may seem to precede the end of the
    # operation.
    return np.asarray(starts >= (operations.start_ns + operations.end_ns) / 2)


def _add_delays(
    observation: Observation, node: int, operations: _InSteps, late_ns: FloatArray
) -> None:
    """Add the part of a node's launch delay during host operations to `late_ns`, in place."""
    delay = observation.delay_ns(node)
    at = (operations.step, operations.dp)
    launched = observation.layout.start_ns[node][at]
    since = np.maximum(operations.start_ns, launched - delay[at])
    meanwhile = np.minimum(operations.end_ns, launched) - since
    np.add.at(
        late_ns, at, np.where(_follows(launched, operations), np.maximum(meanwhile, 0.0), 0.0)
    )
    np.minimum(late_ns, delay, out=late_ns)


# The evidence counts the gaps whose loss is at least this share of the largest loss.
_STRUCK: Final = 0.25
_RECORDED: Final = 0.99  # confidence in operations that ranks record themselves


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide the likeliest reason of an empty gap."""

    # Ranks resume one by one when their first launches spread over this many times the usual spread
    # …
    spread: float = 3.0
    spread_of_gap: float = 0.02  # …and over this share of the gap
    alike: float = 0.15  # highest relative deviation of equally long gaps
    collecting: float = 0.1  # garbage collection right before the gap, as a share of the gap
    # highest confidence of each likely reason
    periodic: float = 0.7
    one_by_one: float = 0.6
    once: float = 0.6
    unknown: float = 0.5


THRESHOLDS: Final = Thresholds()


def recorded_gap_loss(signs: Signs, name: str, doing: str) -> GapLoss | None:
    """Return the loss to a type of operations recorded between steps; None if the loss is small.

    Parameters
    ----------
    doing : str
        The operation as the beginning of a sentence: ``Checkpoints are written``.
    """
    gaps = signs.step_gaps
    if gaps is None or name not in gaps.recorded_ns:
        return None
    lost_ns = gaps.recorded_ns[name]
    if not gaps.is_worth_naming(lost_ns):
        return None
    host_operations = gaps.host_operations.of(name)
    workers = len(set(zip(host_operations.dp.tolist(), host_operations.pp.tolist(), strict=True)))
    layout = signs.observation.layout
    some = f"{workers} of {layout.dp * layout.pp} workers do"
    who = "all workers do" if workers == layout.dp * layout.pp else some
    if workers == 1:
        worker = (int(host_operations.dp[0]), int(host_operations.pp[0]))
        who = f"only {signs.observation.hosts.name_workers(worker)} does"
    text = f"{doing} between steps for {_how(gaps, lost_ns)}; {who}"
    return GapLoss(lost_ns, (_line(gaps, lost_ns, text),), _RECORDED, _figure(lost_ns))


def empty_gap_loss(signs: Signs) -> GapLoss | None:
    """Return the loss to unrecorded idle time between steps, with the likeliest reason."""
    gaps = signs.step_gaps
    if gaps is None:
        return None
    lost_ns = gaps.stalled_ns
    if gaps.is_worth_naming(lost_ns):
        guess = _guess(gaps, lost_ns > 0)
        text = (
            f"Nothing is recorded between steps for {_how(gaps, lost_ns)}; usually "
            f"{gaps.usual_ns / 1e6:.0f} ms pass"
        )
        lines = (_line(gaps, lost_ns, text), Evidence(guess.text))
        return GapLoss(lost_ns, lines, guess.max_confidence, _figure(lost_ns))
    if not gaps.usual_is_lost:
        return None
    lost_ns = np.where(gaps.turns.known, gaps.usual_ns, 0.0)
    text = (
        f"Nothing is recorded for {_time(gaps.usual_ns)} before each step, "
        f"{percent(gaps.usual_ns / gaps.period_ns, 0)} of the time"
    )
    return GapLoss(lost_ns, (_line(gaps, lost_ns, text),), THRESHOLDS.unknown, _figure(lost_ns))


def _how(gaps: StepGaps, lost_ns: FloatArray) -> str:
    """Return the words for the length of lost gaps, the steps after them, and the interval."""
    struck = lost_ns > _STRUCK * lost_ns.max()
    mean = _time(float(lost_ns[struck].mean()))
    has_gap = gaps.turns.known
    if struck.sum() > has_gap.sum() / 2:
        return f"{mean} before each step"
    steps = gaps.turns.steps
    apart = interval(steps[has_gap], struck[has_gap])
    often = f", every {apart} steps" if apart and struck.sum() >= FEWEST else ""
    each = "" if struck.sum() == 1 else " each time"
    return f"{mean}{each} before {listed(steps[struck].tolist())}{often}"


def _time(time_ns: float) -> str:
    return f"{time_ns * NS:.1f} s" if time_ns >= 1e9 else f"{time_ns / 1e6:.0f} ms"  # noqa: PLR2004 - a second


def _line(gaps: StepGaps, lost_ns: FloatArray, text: str) -> Evidence:
    """Return a sentence of evidence with a view of the step after the largest loss."""
    return Evidence(text, StepView(step=int(gaps.turns.steps[int(lost_ns.argmax())])))


def _figure(lost_ns: FloatArray) -> LateLaunches:
    return LateLaunches(by_step_s=tuple((lost_ns * NS).tolist()))


@dataclass(frozen=True, slots=True)
class _Guess:
    """The likeliest reason of an empty gap, as a sentence."""

    text: str
    max_confidence: float


def _guess(gaps: StepGaps, struck: BoolArray) -> _Guess:
    """Return the likeliest reason of the empty gaps before the struck steps."""
    turns, gap_ns = gaps.turns, gaps.stalled_ns[struck]
    has_gap = turns.known
    others = has_gap & ~struck
    gap, collected = float(np.median(gap_ns)), gaps.collected_ns
    collecting = float(np.median(collected[struck]))
    if collecting >= THRESHOLDS.collecting * gap and (
        np.median(collected[others]) < THRESHOLDS.collecting * collecting
    ):
        text = "Likeliest garbage: it is collected right before, and not before other steps"
        return _Guess(text, THRESHOLDS.one_by_one)
    begins = turns.begins_ns[:, turns.begins_ns.min(axis=(0, 2)).argmin()]
    spread = np.ptp(begins, axis=1)
    apart, usually = float(np.median(spread[struck])), float(np.median(spread[others]))
    if apart > max(THRESHOLDS.spread * usually, THRESHOLDS.spread_of_gap * gap):
        text = (
            f"Likeliest data: workers go on one by one, {_time(apart)} apart, as when each waits "
            "for its own batch"
        )
        return _Guess(text, THRESHOLDS.one_by_one)
    saved = "Likeliest a checkpoint or an evaluation"
    alike = float(np.std(gap_ns)) <= THRESHOLDS.alike * float(np.mean(gap_ns))
    if interval(turns.steps[has_gap], struck[has_gap]) and alike and struck.sum() >= FEWEST:
        text = f"{saved}: as long each time, evenly, and all workers go on together"
        return _Guess(text, THRESHOLDS.periodic)
    if struck.sum() == 1:
        text = f"{saved}: there once, and all workers go on together"
        return _Guess(text, THRESHOLDS.once)
    text = (
        "Likeliest data, as when a loader fills its buffer: it comes unevenly, and all workers go "
        "on together"
    )
    return _Guess(text, THRESHOLDS.unknown)
