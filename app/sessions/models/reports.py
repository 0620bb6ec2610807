"""Store and read the reports of sessions: each report is one row and two blobs.

The document is zstd-compressed JSON; the heatmaps are a ``.npy`` file.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import zstandard
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import delete
from sqlalchemy.dialects.postgresql import insert

from app.analysis.json_text import to_json
from app.analysis.report import document
from app.analysis.report.document import OLDEST_REVISION, REVISION, SCHEMA, Report
from app.analysis.report.session_verdict import SessionVerdict
from app.errors import UnknownDocumentError
from app.platform.blobs import Staged, delete_blob, read_blob, write_blob
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.sessions.models.tables import StoredReport, StoredVerdict

# zstd's default level: reports shrink to a seventh; higher levels save only a few percent more.
ZSTD_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class StagedReport:
    """The staged blobs of a report whose row is not stored yet."""

    document: Staged
    heatmaps: Staged


def stage_report(
    stage: Callable[[Iterable[bytes]], Staged],
    report: document.Report,
    heatmaps: NDArray[np.float32],
) -> StagedReport:
    """Encode a report and stage its blobs.

    Parameters
    ----------
    stage : callable
        `Container.stage` of the project.
    heatmaps : float32 array, shape (analyzed steps, dp, pp)
        Slowdown of a step if only this worker kept its recorded durations.

    Raises
    ------
    ValueError
        The report has NaN or infinity, which JSON lacks.
    ObjectStoreError
    """
    text = to_json(report, compact=True).encode()
    array = io.BytesIO()
    np.save(array, heatmaps, allow_pickle=False)
    return StagedReport(stage([zstandard.compress(text, ZSTD_LEVEL)]), stage([array.getvalue()]))


def replace_report(
    tx: UnitOfWork, session_id: uuid.UUID, staged: StagedReport, verdict: SessionVerdict
) -> None:
    """Store the report and verdict of a session; they replace the earlier ones."""
    delete_report(tx, session_id)
    tx.session.execute(
        insert(StoredReport).values(
            session_id=session_id,
            document_blob=write_blob(tx, staged.document),
            heatmap_blob=write_blob(tx, staged.heatmaps),
        )
    )
    tx.session.execute(insert(StoredVerdict).values(session_id=session_id, document=verdict))


def delete_report(tx: UnitOfWork, session_id: uuid.UUID) -> None:
    """Delete the report and verdict of a session, if there are any."""
    tx.session.execute(delete(StoredVerdict).where(StoredVerdict.session_id == session_id))
    old = tx.session.execute(
        delete(StoredReport)
        .where(StoredReport.session_id == session_id)
        .returning(StoredReport.document_blob, StoredReport.heatmap_blob)
    ).one_or_none()
    if old is not None:
        delete_blob(tx, old.document_blob)
        if old.heatmap_blob is not None:
            delete_blob(tx, old.heatmap_blob)


def read_document(tx: Reads, report: StoredReport) -> bytes:
    """Return the report's JSON text, encoded as UTF-8."""
    return zstandard.decompress(b"".join(read_blob(tx, report.document_blob)))


def read_heatmaps(tx: Reads, heatmap_blob: uuid.UUID) -> NDArray[np.float32]:
    """Return the heatmaps of a report, shape (analyzed steps, dp, pp)."""
    array: NDArray[np.float32] = np.load(
        io.BytesIO(b"".join(read_blob(tx, heatmap_blob))), allow_pickle=False
    )
    return array


REPORT: Final = TypeAdapter(Report)


@dataclass(frozen=True, slots=True)
class _Version:
    """The version fields of a stored report document."""

    schema: str
    revision: int


_VERSION: Final = TypeAdapter(_Version)


def open_report(text: bytes) -> Report:
    """Return a stored report upgraded to this version; fields that an older report lacks are empty.

    Raises
    ------
    UnknownDocumentError
        ``report.unknown_version``: another version of Paceline stored it.
    """
    try:
        report = REPORT.validate_json(text)
    except ValidationError:
        # If the version is unknown, that is the reason why the document is invalid.
        check_version(text)
        raise
    _require_known(report.schema, report.revision)
    return replace(report, revision=REVISION)


def check_version(text: bytes) -> None:
    """Raise `UnknownDocumentError` if a later version of Paceline stored the report."""
    version = _VERSION.validate_json(text)
    _require_known(version.schema, version.revision)


def _require_known(schema: str, revision: int) -> None:
    if schema != SCHEMA or not OLDEST_REVISION <= revision <= REVISION:
        raise UnknownDocumentError(
            f"The report is {schema}, revision {revision}; this version of "
            f"Paceline reads {SCHEMA}, revision {REVISION}. A later one stored it.",
            code="report.unknown_version",
        )
