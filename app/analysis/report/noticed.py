"""Which of a session's fixes the metadata of a later one show as applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from app.analysis.diagnosis.places import Worker
from app.analysis.mitigation.predictions import EVEN_STAGES, REPLACE_WORKER
from app.analysis.report.document import Report
from app.analysis.report.findings import Recommendation
from app.analysis.trace.layers import layers_per_chunk
from app.analysis.trace.model import SessionMeta

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
