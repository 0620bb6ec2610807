"""What ranks of a job say of themselves while its pulse shows that no step ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from sqlalchemy import select

from app.alerts.notices.facts import STANDING_STILL
from app.analysis.pulse.beats import Limits
from app.analysis.pulse.notices import NoticeKind
from app.db.models.noticed import PulseNotice
from app.errors import InvalidTraceError
from app.services.hangs.receive import Live, join_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Select

    from app.db.unit_of_work import Reads, UnitOfWork
    from app.inputs.hangs.files import HangFile
    from app.settings import Settings

log = structlog.get_logger(__name__)


def limits_of(settings: Settings) -> Limits:
    """Return when a job stands still, by the settings."""
    return Limits(int(settings.hang_after_s * 1e9), int(settings.pulse_interval_s * 1e9))


def stands_still(tx: Reads, job_id: int, attempt: int) -> bool:
    """Return whether a notice says that no step of an attempt ends."""
    return tx.session.execute(_notices(job_id, attempt).limit(1)).first() is not None


def _notices(job_id: int, attempt: int) -> Select[NoticeKind, list[int]]:
    """Select what says that no step of an attempt ends."""
    return select(PulseNotice.kind, PulseNotice.ranks).where(
        PulseNotice.job_id == job_id,
        PulseNotice.attempt == attempt,
        PulseNotice.cleared_at.is_(None),
        PulseNotice.cleared_step.is_(None),
        PulseNotice.kind.in_(STANDING_STILL),
    )


def keep_live(
    tx: UnitOfWork,
    job_id: int,
    attempt: int,
    files: Sequence[HangFile],
    hosts: Mapping[int, str],
) -> None:
    """Judge what ranks say as long as a notice says that they stand still; later it is of no use.

    The job's group of alerts is locked.

    Parameters
    ----------
    hosts : mapping of int to str
        By rank.
    """
    if not files:
        return
    notices = tx.session.execute(_notices(job_id, attempt)).all()
    if not notices:
        return
    gone = {rank for kind, ranks in notices if kind is NoticeKind.SILENT for rank in ranks}
    try:
        join_files(tx, job_id, files, Live(hosts, frozenset(gone)))
    except InvalidTraceError as error:
        # Each can be read, but together they are of no job; the notice stands without them.
        log.warning("hang not judged", job=job_id, code=error.stable_code, files=len(files))
