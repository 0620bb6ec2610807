"""Fixes that a job applied according to its later metadata; outcomes against predictions.

The recorded steps of the last session before a fix and of the first session after it are compared.
A gain is a share of a step, so a prediction holds for the session whose report contains it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, TypeAlias

from app.analysis.mitigation.predictions import EVEN_STAGES, REPLACE_WORKER
from app.analysis.report.document import JobSizes, Recommendation, Report
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.parallelism import layers_per_chunk

_Sign: TypeAlias = Callable[[Recommendation, Report, SessionMeta, SessionMeta], bool]


def noticed_fixes(
    report: Report, before: SessionMeta, after: SessionMeta
) -> tuple[Recommendation, ...]:
    """Return the fixes of a report that were applied according to a later session's metadata.

    Parameters
    ----------
    report : Report
        Report of the earlier session.
    before, after : SessionMeta
        Metadata of the earlier session, and of a later session.
    """
    return tuple(
        fix
        for fix in report.recommendations
        if (sign := _SIGNS.get(fix.action)) is not None and sign(fix, report, before, after)
    )


def _replaced(fix: Recommendation, report: Report, before: SessionMeta, after: SessionMeta) -> bool:
    """Return whether every worker to replace runs on other machines or GPUs than before."""
    cause = next((cause for cause in report.causes if cause.cause == fix.cause), None)
    workers = () if cause is None else cause.where.workers
    for worker in workers:
        rank = report.rank_of(worker)
        was = before.machine(rank)
        # A GPU that now runs another rank of the job was not replaced.
        remains = was.uuid is not None and was.uuid in after.uuids.values()
        if remains or not after.machine(rank).differs(was):
            return False
    return bool(workers)


def _divided(fix: Recommendation, report: Report, before: SessionMeta, after: SessionMeta) -> bool:
    """Return whether the layers are divided as recommended, and were not before."""
    if fix.division is None:
        return False
    advised = [list(chunks) for chunks in fix.division.layers]
    was, is_now = (
        layers_per_chunk(meta.extra, report.sizes.pp, report.sizes.vpp) for meta in (before, after)
    )
    if was is None or is_now is None:
        return False
    return [list(chunks) for chunks in is_now] == advised != [list(chunks) for chunks in was]


_SIGNS: Final[Mapping[str, _Sign]] = {REPLACE_WORKER: _replaced, EVEN_STAGES: _divided}


# Keys of metadata about the work of a step, as training frameworks name them.
WORK_KEYS: Final = ("global_batch_size", "micro_batch_size", "microbatches", "seq_length")
MET_WITHIN: Final = 0.05  # relative error of the step time from which a prediction is not met


@dataclass(frozen=True, slots=True)
class Run:
    """A session's step time, and the properties that two compared sessions must share."""

    step_time_s: float  # mean over the recorded steps
    sizes: JobSizes
    work: Mapping[str, Any]  # its metadata of `WORK_KEYS`


@dataclass(frozen=True, slots=True)
class Outcome:
    """The measured outcome of a fix."""

    step_time_s: float  # mean step time of the first session with it
    gain: float  # saved share of the step time before; negative where steps are slower
    unlike: str | None  # why the two sessions cannot be compared; None if they can


def work_of(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata about the work of a step."""
    return {key: extra[key] for key in WORK_KEYS if key in extra}


def outcome(before: Run, after: Run, applied: int = 1) -> Outcome:
    """Return the outcome of the fixes applied between two sessions.

    Parameters
    ----------
    applied : int
        Number of fixes that were applied between the two sessions.

    Examples
    --------
    >>> sizes = JobSizes(dp=2, pp=2, tp=1, cp=1, vpp=1, world=4)
    >>> outcome(Run(2.0, sizes, {}), Run(1.5, sizes, {}))
    Outcome(step_time_s=1.5, gain=0.25, unlike=None)
    """
    gain = 1 - after.step_time_s / before.step_time_s
    return Outcome(after.step_time_s, gain, _unlike(before, after, applied))


def _unlike(before: Run, after: Run, applied: int) -> str | None:
    """Return the reason why two sessions cannot be compared; None if they can."""
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
    """Return the relative error of a predicted step time; positive if the real step was slower.

    Examples
    --------
    >>> prediction_error(0.5, 0.49)
    0.02
    """
    return round((1 - realized_gain) / (1 - predicted_gain) - 1, 12)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Accuracy of the predictions of a kind of fix."""

    measured: int  # outcomes that could be compared
    met: int  # outcomes within `MET_WITHIN` of the predicted step time
    median_error: float  # median absolute error


def calibration(errors: Sequence[float]) -> Calibration | None:
    """Return the accuracy of predictions, given each `prediction_error`; None without any."""
    if not errors:
        return None
    sizes = [abs(error) for error in errors]
    return Calibration(len(sizes), sum(size <= MET_WITHIN for size in sizes), median(sizes))
