"""Applied fixes seen in later metadata, and their outcome against the prediction.

Recorded steps of the last session before and the first one after are compared. A gain is a share of
a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, TypeAlias

from app.analysis.diagnosis.locations import Worker
from app.analysis.mitigation.predictions import EVEN_STAGES, REPLACE_WORKER
from app.analysis.report.document import JobSizes, Recommendation, Report
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.parallelism import layers_per_chunk

# ---- Which of a session's fixes the metadata of a later one show as applied --------------------


_Sign: TypeAlias = Callable[[Recommendation, Report, SessionMeta, SessionMeta], bool]


def noticed_fixes(
    report: Report, before: SessionMeta, after: SessionMeta
) -> tuple[Recommendation, ...]:
    """Return the fixes of a report that a later session's metadata show.

    Parameters
    ----------
    report : Report
        Of the session before.
    before, after : SessionMeta
        Of that session, and of a later one.
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
    return bool(workers) and all(_moved(worker, report, before, after) for worker in workers)


def _moved(worker: Worker, report: Report, before: SessionMeta, after: SessionMeta) -> bool:
    dp, pp = worker
    rank = report.workers.rank[dp][pp]
    was = before.machine(rank)
    # A machine that another rank has now was not replaced.
    remains = was.uuid is not None and was.uuid in after.uuids.values()
    return after.machine(rank).differs(was) and not remains


def _divided(fix: Recommendation, report: Report, before: SessionMeta, after: SessionMeta) -> bool:
    """Return whether the layers are divided as advised, and were not before."""
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


# ---- What a fix brought, next to what was predicted: two sessions of a job, before it and after --
# Steps are compared as they were recorded. The gain of a fix is a share of a step, so that the
# prediction holds for the session that made it, and its outcome for the first one after.


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
