"""The read side of reports: documents, and heatmaps that are asked for step after step."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from app.analysis.report.heatmaps import mean_heatmap
from app.db.documents import check_version, open_report
from app.db.models.sessions import Session, StoredReport
from app.db.reports import read_document, read_heatmaps
from app.errors import NotFoundError
from app.services.sessions.read import no_session

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from app.analysis.report import document
    from app.db.unit_of_work import Reads

# Heatmaps of this number of sessions stay in memory: choosing step after step must not read a
# report of megabytes each time. 1,024 × 64 workers and 50 steps are 13 MB.
CACHED_HEATMAPS: Final = 4


def report_json(tx: Reads, session_id: uuid.UUID) -> bytes:
    """Return the report of a session as JSON text, schema ``paceline.report/1``.

    Raises
    ------
    NotFoundError
        If there is no such session, or it has no report (yet).
    UnknownDocumentError
        If a later version of Paceline stored it.
    """
    text = read_document(tx, _report(tx, session_id))
    check_version(text)
    return text


def report_document(tx: Reads, session_id: uuid.UUID) -> document.Report:
    """Return the report of a session.

    Raises
    ------
    NotFoundError
        As `report_json` does.
    UnknownDocumentError
        If a later version of Paceline stored it.
    """
    return open_report(read_document(tx, _report(tx, session_id)))


def heatmap(tx: Reads, session_id: uuid.UUID, step: int | None = None) -> NDArray[np.float32]:
    """Return the slowdown of one step if only that worker kept its recorded durations.

    Parameters
    ----------
    step : int, optional
        A training step; without it the mean over the analyzed steps.

    Returns
    -------
    float32 array, shape (dp, pp)

    Raises
    ------
    NotFoundError
        If there is no such session, no report, or the step was not analyzed.
    """
    report = _report(tx, session_id)
    blob = report.heatmap_blob
    if blob is None:
        if step is None:
            # The report has the mean.
            mean = open_report(read_document(tx, report)).by_worker.exact
            return np.asarray(mean, np.float32)
        raise NotFoundError(
            "The heatmaps of single steps were deleted.", code="report.heatmaps_removed"
        )
    maps = _heatmaps.get(blob)
    if maps is None:
        steps = open_report(read_document(tx, report)).steps.analyzed
        maps = _Heatmaps({number: at for at, number in enumerate(steps)}, read_heatmaps(tx, blob))
        _heatmaps.put(blob, maps)
    if step is None:
        return mean_heatmap(maps.values)
    at = maps.position.get(step)
    if at is None:
        raise NotFoundError(f"Step {step} was not analyzed.", code="step_not_analyzed")
    return cast("NDArray[np.float32]", maps.values[at])


def _report(tx: Reads, session_id: uuid.UUID) -> StoredReport:
    report = tx.session.get(StoredReport, session_id)
    if report is not None:
        return report
    session = tx.session.get(Session, session_id)
    if session is None:
        raise no_session(session_id)
    if session.state.underway:
        raise NotFoundError(
            f"There is no report yet: the session is {session.state}.", code="report.not_ready"
        )
    if session.report_removed_at is not None:
        raise NotFoundError(
            f"The report was deleted on {session.report_removed_at:%Y-%m-%d}.",
            code="report.removed",
        )
    why = f": {session.reason}" if session.reason else "."
    raise NotFoundError(f"The session is {session.state}{why}", code="report.none")


@dataclass(frozen=True, slots=True, eq=False)
class _Heatmaps:
    position: Mapping[int, int]
    values: NDArray[np.float32]


class _HeatmapCache:
    """The heatmaps used last, by their blob, which never changes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[uuid.UUID, _Heatmaps] = OrderedDict()

    def get(self, blob_id: uuid.UUID) -> _Heatmaps | None:
        with self._lock:
            if blob_id in self._kept:
                self._kept.move_to_end(blob_id)
            return self._kept.get(blob_id)

    def put(self, blob_id: uuid.UUID, maps: _Heatmaps) -> None:
        with self._lock:
            self._kept[blob_id] = maps
            while len(self._kept) > CACHED_HEATMAPS:
                self._kept.popitem(last=False)


_heatmaps = _HeatmapCache()
