"""Tables of verdicts on many jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.diagnosis.finding import UNKNOWN
from tests.oracles.physics.draw import FAULTS
from tests.referee.judging import NONE, STRAGGLING, Verdict

# Largest accepted relative error of a headline.
NEAR: Final = 0.03
# Causes of the second physics, in the order of its kinds of faults.
CAUSES: Final = tuple(dict.fromkeys(fault.cause for fault in FAULTS.values()))


def _short(cause: str) -> str:
    kind = KINDS.get(cause)
    return kind.word if kind else cause.replace("network_", "").split("_")[0][:8]


def f1(cause: str, counted: Sequence[Verdict]) -> float:
    """Return F1 of a cause among single faults and healthy jobs; NaN without any."""
    true = sum(verdict.cause == cause for verdict in counted)
    named = sum(verdict.lead == cause for verdict in counted)
    both = sum(verdict.cause == verdict.lead == cause for verdict in counted)
    return 2 * both / (true + named) if true else float("nan")


def counted_in_f1(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the healthy jobs, and the jobs that their fault makes slow enough."""
    return [v for v in verdicts if v.cause == NONE or v.slowdown >= STRAGGLING]


def macro_f1(verdicts: Sequence[Verdict]) -> float:
    """Return the mean of F1 over the causes."""
    counted = counted_in_f1(verdicts)
    return float(np.nanmean([f1(cause, counted) for cause in CAUSES]))


def lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield the table of one draw."""
    counted = counted_in_f1(verdicts)
    healthy = [v for v in counted if v.cause == NONE]
    slow = [v for v in counted if v.cause != NONE]
    yield (
        f"{len(verdicts)} jobs of the second physics: {len(slow)} slow ones, {len(healthy)} "
        f"healthy; {len(verdicts) - len(counted)} with a fault that slows them below {STRAGGLING}"
    )
    yield ""
    columns = [*dict.fromkeys([*KINDS, *CAUSES]), UNKNOWN, NONE]
    yield f"{'true, named →':<14}" + "".join(f"{_short(c):>10}" for c in columns) + f"{'F1':>10}"
    for cause in [*CAUSES, NONE]:
        counts = Counter(v.lead for v in counted if v.cause == cause)
        score = f"{f1(cause, counted):10.3f}" if cause != NONE else ""
        yield f"{_short(cause):<14}" + "".join(f"{counts[c] or '.':>10}" for c in columns) + score
    yield ""
    yield (
        f"{'fault':<28}{'jobs':>6}{'right':>8}{'headline ÷ true, 5 to 95 %':>30}"
        f"{'within 3 %':>12}{'S ÷ true':>10}"
    )
    for name in FAULTS:
        yield from _line_of_fault(name, [v for v in slow if v.fault == name])
    workers = [v.worker_right for v in slow if v.worker_right is not None]
    stages = [v.stage_right for v in slow if v.stage_right is not None]
    near = [is_near(v.headline, v.slowdown) for v in slow]
    yield ""
    yield f"Headline within 3 % of the true slowdown in {_percent(near)} of slow jobs"
    yield f"Stage right in {sum(stages)} of {len(stages)}"
    promised = sum(bool(v.fixes) for v in healthy)
    yield f"Fixes advised on {promised} of {len(healthy)} healthy jobs"
    yield f"No verdict on S in {sum(not v.has_verdict for v in verdicts)} of {len(verdicts)}"
    yield ""
    yield (
        f"macro F1 {macro_f1(verdicts):.2f}, "
        f"false alarms {_percent([bool(v.named) for v in healthy])}, "
        f"worst worker {_percent(workers)}"
    )


def _line_of_fault(name: str, verdicts: Sequence[Verdict]) -> Iterator[str]:
    if verdicts:
        right = sum(v.lead == v.cause for v in verdicts) / len(verdicts)
        ratio = np.array([v.headline / v.slowdown for v in verdicts])
        published = np.median([v.published / v.slowdown for v in verdicts])
        low, high = np.quantile(ratio, [0.05, 0.95])
        yield (
            f"{name:<28}{len(verdicts):>6}{right:>8.0%}"
            f"{f'{np.median(ratio):.3f}  {low:.3f} to {high:.3f}':>30}"
            f"{sum(is_near(v.headline, v.slowdown) for v in verdicts) / len(verdicts):>12.0%}"
            f"{published:>10.3f}"
        ).replace("%", " %")


def is_near(headline: float, slowdown: float) -> bool:
    """Return whether a headline is within 3 % of the truth."""
    return abs(headline / slowdown - 1) <= NEAR


def _percent(hits: Sequence[bool]) -> str:
    return f"{100 * sum(hits) / len(hits):.1f} %" if hits else "of none"
