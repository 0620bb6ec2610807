"""What a fix brought, next to what was predicted: two sessions of a job, before it and after.

Steps are compared as they were recorded. The gain of a fix is a share of a step, so that the
prediction holds for the session that made it, and its outcome for the first one after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from app.analysis.report.document import JobSizes

# Metadata that say how much work a step is; jobs name them so.
WORK_KEYS: Final = ("global_batch_size", "micro_batch_size", "microbatches", "seq_length")

# A prediction that is off by less counts as met.
MET_WITHIN: Final = 0.05


@dataclass(frozen=True, slots=True)
class Run:
    """A session's steps, and what has to be alike for another one's to be compared with them."""

    step_time_s: float  # mean over the recorded steps
    sizes: JobSizes
    work: Mapping[str, Any]  # what its metadata say of the work of a step, of `WORK_KEYS`


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a fix brought."""

    step_time_s: float  # mean step time of the first session with it
    gain: float  # the share of the step time before that it saved; negative where steps got slower
    unlike: str | None  # why the two sessions cannot be compared; None where they can


def work_of(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return what metadata say of the work of a step."""
    return {key: extra[key] for key in WORK_KEYS if key in extra}


def outcome(before: Run, after: Run, applied: int = 1) -> Outcome:
    """Return what a change between two sessions brought.

    Parameters
    ----------
    applied : int
        Fixes that were applied between them.

    Examples
    --------
    >>> sizes = JobSizes(dp=2, pp=2, tp=1, cp=1, vpp=1, world=4)
    >>> outcome(Run(2.0, sizes, {}), Run(1.5, sizes, {}))
    Outcome(step_time_s=1.5, gain=0.25, unlike=None)
    """
    gain = 1 - after.step_time_s / before.step_time_s
    return Outcome(after.step_time_s, gain, _unlike(before, after, applied))


def _unlike(before: Run, after: Run, applied: int) -> str | None:
    if before.sizes != after.sizes:
        return f"ran as {_words(after.sizes)}, not as {_words(before.sizes)}"
    for key in WORK_KEYS:
        was, is_now = before.work.get(key), after.work.get(key)
        if was is not None and is_now is not None and was != is_now:
            return f"{key} was {was}, and is {is_now}"
    if applied > 1:
        return f"{applied} fixes were applied at once"
    return None


def _words(sizes: JobSizes) -> str:
    parts = {"DP": sizes.dp, "PP": sizes.pp, "TP": sizes.tp, "CP": sizes.cp, "VPP": sizes.vpp}
    return " × ".join(f"{name} {size}" for name, size in parts.items() if size > 1 or name == "DP")


def prediction_error(predicted_gain: float, realized_gain: float) -> float:
    """Return by how much the step was slower than predicted, as a share of the prediction.

    Examples
    --------
    >>> prediction_error(0.5, 0.49)
    0.02
    """
    return round((1 - realized_gain) / (1 - predicted_gain) - 1, 12)


@dataclass(frozen=True, slots=True)
class Calibration:
    """How predictions of a kind of fix turned out."""

    measured: int  # outcomes that could be compared
    met: int  # of these, within `MET_WITHIN` of the predicted step time
    median_error: float  # of their absolute errors


def calibration(errors: Sequence[float]) -> Calibration | None:
    """Return how predictions turned out, from their `prediction_error`; None where none did."""
    if not errors:
        return None
    sizes = [abs(error) for error in errors]
    return Calibration(len(sizes), sum(size <= MET_WITHIN for size in sizes), median(sizes))
