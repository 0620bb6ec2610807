"""Predicted gain of dividing sequences evenly over DP ranks and microbatches.

If a session's metadata hold the lengths of its sequences, each step's batch is divided by
`paceline_client.balance`, the algorithm that data loaders use, with costs fitted to the session.
The replay scales each recorded computation by its microbatch's new cost ÷ old cost. Without lengths
only an upper bound of the gain is known, from a replay in which every microbatch takes the mean
time (what-if paper, section 5.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from app.analysis.diagnosis.finding import Cause
from app.analysis.diagnosis.observation import (
    Observation,
    robust_deviation,
    sample,
)
from app.analysis.mitigation.fixes import Balancing, Fix
from app.analysis.quantities import FloatArray, IntArray, SingleArray
from app.analysis.replay.engine.simulator import Replacement
from app.analysis.replay.host_delays import launched_step_times
from app.analysis.replay.robust_statistics import median
from app.analysis.replay.session import Replayed
from app.analysis.trace.model import ABSENT, BACKWARD_COMPUTE, FORWARD_COMPUTE, Trace

EVEN_MICROBATCHES: Final = "even_microbatches"
_TITLE: Final = "Even out the sequence lengths of microbatches"
_KEY: Final = "sequence_lengths"
# Key of the metadata with the number of tokens of a microbatch that memory holds.
_MOST_TOKENS: Final = "max_tokens"
# Minimum number of steps with known lengths: fewer do not represent the session.
_FEWEST: Final = 3
# Microbatches are equally full if the smallest has this share of the largest one's tokens.
_FULL: Final = 0.9
# Maximum number of sequences to divide. Larger sessions are sampled by step, which bounds the time
# of the analysis.
_MOST_SEQUENCES: Final = 40_000
# Approximate number of microbatches that the cost is fitted to; larger samples are thinned out.
_FITTED: Final = 2_000
# Maximum length of a sequence. Metadata are untrusted: a longer sequence is an error, and squares
# of shorter ones stay far from overflow.
_LONGEST: Final = 1e9
# Computations that deviate from the fit by more standard deviations are excluded from it.
_OUTLYING: Final = 4.0
# Number of alternations between fitting the cost of lengths and fitting the speed of workers.
_TURNS: Final = 4
# Lower bound of a microbatch's cost, as a share of the mean: keeps ratios of costs finite.
_LEAST: Final = 0.02
_MS_PER_NS: Final = 1e-6

# Lengths of a step's sequences, as [dp][microbatch][sequence].
Batch = list[list[list[int]]]


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """Sums Σs and Σs² of the sequence lengths s of microbatches, (2, microbatches, steps, dp)."""

    values: FloatArray

    def of(self, microbatch: IntArray) -> FloatArray:
        """Return the rows 1, Σs and Σs² of each computation, shape (3, passes, steps, dp)."""
        chosen = self.values[:, microbatch]
        return np.concatenate([np.ones((1, *chosen.shape[1:])), chosen])


@dataclass(frozen=True, slots=True, eq=False)
class _KnownLengths:
    """Known sequence lengths of a session."""

    observation: Observation
    steps: IntArray  # (steps,): indices of the steps that are divided
    batches: list[Batch]  # of these steps
    microbatch: IntArray  # (passes,): index of each computation's microbatch in its rank's batch

    def sums(self, batches: Sequence[Batch]) -> _Sums:
        """Return Σs and Σs² of each microbatch of the batches."""
        table = [
            [[(sum(mb), sum(s * s for s in mb)) for mb in rank] for rank in batch]
            for batch in batches
        ]
        return _Sums(np.moveaxis(np.array(table, dtype=np.float64), (3, 2), (0, 1)))


def even_out(
    trace: Trace, replayed: Replayed, cause: Cause, now_s: float, *, trusted: bool
) -> Fix | None:
    """Return the fix that divides sequences evenly; without lengths its gain is an upper bound.

    Parameters
    ----------
    now_s : float
        Mean step time today, seconds.
    trusted : bool
        Whether the replay reproduces the recording closely enough.
    """
    recorded = _known_lengths(trace, replayed) if trusted else None
    if recorded is None:
        if cause.saves is None:
            return None
        return Fix(
            EVEN_MICROBATCHES,
            _TITLE,
            "Replayed with every microbatch taking the mean time: the most that dividing sequences "
            "better over DP ranks and microbatches can bring. With "
            f'"{_KEY}" in the metadata the division itself is replayed.',
            now_s * (1 - cause.saves),
            cause.saves,
            cause=cause.cause,
            at_most=True,
        )
    tokens = [sum(mb) for batch in recorded.batches for rank in batch for mb in rank]
    limits = sorted({max(tokens), _tokens_that_fit(trace, tokens)})
    plans = [_plan(recorded, limit) for limit in limits]
    today = recorded.sums(recorded.batches)
    changes = [
        _with_batches(recorded, today, recorded.sums(_divided(recorded, plan))) for plan in plans
    ]
    times = launched_step_times(replayed.main, *changes)
    chosen = times[recorded.steps].mean(axis=0)
    # More room does not always help a division that is not exact.
    best = int(np.argmin(chosen[1:]))
    plan = plans[best]
    limit = (
        f"which memory holds, {max(tokens):,} today"
        if plan.max_tokens > max(tokens)
        else "as today"
        if len(limits) > 1
        else f'as today (with "{_MOST_TOKENS}" in the metadata as many as memory holds)'
    )
    # The steps that were not sampled are assumed to save the same share as the sampled steps.
    saved_s = float((chosen[0] - chosen[1 + best]) / chosen[0] * times[:, 0].mean())
    return Fix(
        EVEN_MICROBATCHES,
        _TITLE,
        "Replayed with this session's own sequences, divided over DP ranks and microbatches by "
        f"paceline_client.balance, none with over {plan.max_tokens:,} tokens, {limit}: {plan.call}",
        now_s - saved_s,
        saved_s / now_s,
        cause=cause.cause,
        balancing=plan,
    )


def _divided(recorded: _KnownLengths, plan: Balancing) -> list[Batch]:
    """Return the recorded batches as a data loader divides them."""
    from paceline_client.balance import Cost, balance  # noqa: PLC0415 - as in `_plan`

    cost = Cost(plan.fixed_ms, plan.linear_ms, plan.quadratic_ms)
    divided = []
    for batch in recorded.batches:
        places = balance(batch, cost=cost, max_tokens=plan.max_tokens, stages=plan.stages)
        divided.append([[[batch[r][m][i] for r, m, i in mb] for mb in rank] for rank in places])
    return divided


def _known_lengths(trace: Trace, replayed: Replayed) -> _KnownLengths | None:
    """Return the sequence lengths of the steps where all are known; None if such steps are few."""
    observation = Observation(trace, replayed.main)
    given = trace.meta.extra.get(_KEY)
    if not isinstance(given, dict) or BACKWARD_COMPUTE not in observation.passes:
        return None
    layout = observation.layout
    numbers = layout.nodes.mb[observation.passes[BACKWARD_COMPUTE].nodes[0]]
    which, microbatch = np.unique(numbers, return_inverse=True)
    if which[0] == ABSENT:
        return None
    by_step = [
        _validated_batch(given.get(str(step)), layout.dp, which.tolist()) for step in layout.steps
    ]
    steps = [step for step, batch in enumerate(by_step) if batch is not None]
    if len(steps) < _FEWEST:
        return None
    count = sum(len(mb) for batch in by_step for rank in batch or () for mb in rank)
    steps = steps[:: -(-count // _MOST_SEQUENCES)]
    batches = [batch for step in steps if (batch := by_step[step]) is not None]
    return _KnownLengths(observation, np.array(steps), batches, microbatch)


def _validated_batch(given: Any, ranks: int, microbatches: list[int]) -> Batch | None:  # noqa: ANN401 - JSON
    """Return a step's validated sequence lengths; None if a microbatch is missing or invalid."""
    if not isinstance(given, list | tuple) or len(given) < ranks:
        return None
    batch: Batch = []
    for of_rank in given[:ranks]:
        if not isinstance(of_rank, list | tuple) or len(of_rank) <= microbatches[-1]:
            return None
        chosen = [of_rank[number] for number in microbatches]
        if not all(isinstance(mb, list | tuple) and mb for mb in chosen):
            return None
        if not all(
            (isinstance(length, int) and not isinstance(length, bool) and 0 < length <= _LONGEST)
            for mb in chosen
            for length in mb
        ):
            return None
        batch.append([list(mb) for mb in chosen])
    return batch


def _tokens_that_fit(trace: Trace, tokens: Sequence[int]) -> int:
    """Return the most tokens of a microbatch: those that memory holds, at least today's largest.

    It is today's largest if the metadata do not name it, or if all of today's microbatches (their
    numbers are `tokens`) are about equally full: then the cost of other numbers is unknown.
    """
    largest, given = max(tokens), trace.meta.extra.get(_MOST_TOKENS)
    if not isinstance(given, int) or isinstance(given, bool) or given > _LONGEST:
        return largest
    return max(largest, given) if min(tokens) < _FULL * largest else largest


def _plan(recorded: _KnownLengths, max_tokens: int) -> Balancing:
    """Return the fitted cost of microbatches on the mean stage, with the limit of tokens."""
    # Imported here because the import also loads the client's recorder, which only sessions with
    # known lengths need.
    from paceline_client.balance import Cost  # noqa: PLC0415 - see above

    passes = recorded.observation.passes
    first = passes[FORWARD_COMPUTE].chunk == 0
    total_ms = sum(
        passes[name].times_ns[:, first][:, :, recorded.steps].mean(axis=0) * _MS_PER_NS
        for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE)
    )
    places = [
        (batch[dp][mb], float(total_ms[row, step, dp]))
        for step, batch in enumerate(recorded.batches)
        for dp in range(len(batch))
        for row, mb in enumerate(recorded.microbatch[first].tolist())
    ]
    # An odd stride samples all ranks, whose number is usually even.
    cost = Cost.fit(places[:: len(places) // _FITTED | 1])
    return Balancing(
        fixed_ms=cost.fixed,
        linear_ms=cost.linear,
        quadratic_ms=cost.quadratic,
        max_tokens=max_tokens,
        stages=recorded.observation.layout.pp,
    )


def _with_batches(recorded: _KnownLengths, today: _Sums, after: _Sums) -> Replacement:
    """Return the durations of the computations after sequences moved between microbatches."""
    observation = recorded.observation
    changed = observation.recorded_ns
    before, then = today.of(recorded.microbatch), after.of(recorded.microbatch)
    nodes, curves = [], []
    for passes in observation.passes.values():
        for of_stage, times_ns in zip(passes.nodes, passes.times_ns, strict=True):
            nodes.append(of_stage)
            curves.append(_fit_cost(before, times_ns[:, recorded.steps], passes.chunk))
    position = np.full(changed.shape[1], -1)
    position[recorded.steps] = np.arange(len(recorded.steps))

    def times(steps: slice) -> FloatArray:
        sampled = position[steps]
        divided = sampled >= 0
        rows = []
        for of_stage, curve in zip(nodes, curves, strict=True):
            values = changed[of_stage, steps]
            old, new = (
                np.maximum(np.tensordot(curve, sums[:, :, sampled[divided]], 1), _LEAST)
                for sums in (before, then)
            )
            values[:, divided] *= new / old
            rows.append(values)
        return np.concatenate(rows)

    return Replacement(np.concatenate(nodes), times)


def _fit_cost(sums: FloatArray, times_ns: SingleArray, chunk: IntArray) -> FloatArray:
    """Return the cost coefficients of 1, Σs and Σs² on a stage, relative to its median microbatch.

    Alternates a least-squares fit of the coefficients with an estimate of the speed of each worker
    and chunk, since the speeds differ. Shapes: sums (3, passes, steps, dp), times (passes, steps,
    dp).
    """
    relative = times_ns / median(times_ns.reshape(-1))
    features = np.stack([sample(part) for part in sums], axis=-1)
    scale = np.maximum(np.abs(features).max(axis=0), 1.0)
    curve = np.zeros(3)
    for _ in range(_TURNS):
        times = sample(relative.astype(np.float64))
        near = np.ones(len(times), dtype=bool)
        for _ in range(2):
            curve = np.linalg.lstsq(features[near] / scale, times[near], rcond=None)[0] / scale
            residual = times - features @ curve
            near = np.abs(residual) <= max(_OUTLYING * robust_deviation(residual), _LEAST)
        fitted = np.maximum(np.tensordot(curve, sums, 1), _LEAST)
        for number in range(int(chunk.max()) + 1):
            mine = chunk == number
            off = (relative[mine] / fitted[mine]).reshape(-1, relative.shape[-1])
            relative[mine] /= median(off).astype(np.float32)
    return np.asarray(curve)
