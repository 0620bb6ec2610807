"""Use case: receive files of a hanging job (recorder dumps, stacks, RAS), and store a verdict."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import structlog
import zstandard
from pydantic import TypeAdapter
from sqlalchemy import Select, delete, select
from sqlalchemy.dialects.postgresql import insert

from app.analysis.hangs.document import HangDocument, hang_document
from app.analysis.hangs.state import JobState, Place
from app.analysis.json_text import to_json
from app.analysis.pulse.heartbeats import Limits
from app.analysis.pulse.notices import NoticeKind
from app.errors import InvalidTraceError
from app.hangs.files import (
    FileKind,
    HangFile,
    job_of,
    read_file_at,
    unpack_files,
    unpacked_size,
)
from app.hangs.models import StoredHang, StoredHangFile
from app.incidents.evaluate import look
from app.incidents.models.facts import STANDING_STILL
from app.incidents.rule_store import give_hang_rule
from app.incidents.store import group_of_job
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.killable import allowance, call
from app.platform.resources import spool_directory
from app.platform.settings import Settings
from app.pulse.models import PulseNotice
from app.sessions.body import Body, trace_limits
from app.sessions.models.reports import ZSTD_LEVEL
from app.sessions.models.tables import Session
from app.sessions.receive import check_job_name, make_job
from app.sessions.recordings.choose import archive_at


def with_places(tx: Reads, job_id: int, job: JobState) -> JobState:
    """Return the job's state with the hosts and GPUs from its latest session."""
    meta: Mapping[str, Any] | None = tx.session.execute(
        select(Session.meta)
        .where(Session.job_id == job_id)
        .order_by(Session.received_at.desc())
        .limit(1)
    ).scalar()
    if not meta or meta.get("world") != len(job.world):
        # The session has another number of ranks, so that its ranks are not those of the hang.
        return job
    hosts, gpus = meta.get("hosts", {}), meta.get("gpus", {})
    return replace(
        job,
        places={
            rank: Place(
                hosts.get(str(rank), job.place(rank).host),
                gpus.get(str(rank), job.place(rank).gpu),
            )
            for rank in job.world
        },
    )


def guessed_hosts(tx: Reads, job: str) -> frozenset[str]:
    """Return the hosts, in the job's latest session, whose names may be those of containers."""
    guessed: Mapping[str, str] | None = tx.session.execute(
        select(Session.meta["guessed_hosts"])
        .join(Job, Job.id == Session.job_id)
        .where(Job.name == job)
        .order_by(Session.received_at.desc())
        .limit(1)
    ).scalar()
    return frozenset(guessed or ())


log = structlog.get_logger(__name__)

# A single file is added to the open hang if the hang's last file was received within this time.
JOINED_WITHIN: Final = timedelta(minutes=10)
# Archives above this size are read by a worker, because reading takes a tenth of a second a
# megabyte and the sender would wait.
MOST_AT_ONCE_BYTES: Final = 8 << 20
# Rank that the database stores for a file about all ranks.
_NO_RANK: Final = -1
# Times of hosts after this one are ignored, since they are due to wrong clocks.
_LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)
_FILE: Final = TypeAdapter(HangFile)


@dataclass(frozen=True, slots=True)
class HangReceipt:
    """The hang to which the files in a body belong.

    Parameters
    ----------
    created : bool
        Whether the body created the hang.
    not_read : tuple of str
        Names of files in an archive of unknown kinds.
    """

    hang: uuid.UUID
    created: bool
    not_read: tuple[str, ...] = ()


def receive_hang(
    container: Container, job: str, body: Body, *, name: str = "", rank: int | None = None
) -> HangReceipt:
    """Read the files in a body, and store the verdict on the job.

    An archive is one hang with all its files; the same archive again is the same hang. A single
    file joins the job's open hang if the last file of that came within ten minutes, else it begins
    a hang; the latest file of each rank and kind counts.

    Parameters
    ----------
    job : str
        Name of the job; created if new.
    name : str
        Name of a single file; ends with its rank unless `rank` is given.

    Raises
    ------
    InvalidJobNameError, InvalidTraceError, InvalidArchiveError, BodyTooLargeError,
    ReadLimitError, QuotaExceededError
        Nothing is stored.
    """
    check_job_name(job)
    if archive_at(body.path) is None:
        settings = container.settings
        found = call(
            read_file_at,
            *(body.path, trace_limits(settings), name or "the body", rank),
            limits=allowance(body.size, settings.analysis_memory_limit_kib),
        )
        if not found:
            raise InvalidTraceError(
                "It is neither a flight recorder's dump nor py-spy's nor ncclras's, nor a log of "
                "PyTorch's watchdog",
                code="hang.unknown_file",
            )
        with container.uow() as tx:
            job_id = make_job(container, tx, job)
            receipt = add_files(tx, job_id, found)
            look(container, tx, group_of_job(tx, job_id))
    else:
        files, not_read = files_of(container.settings, body.path)
        with container.uow() as tx:
            job_id = make_job(container, tx, job)
            receipt = add_archive(container, tx, job_id, files, body.sha256)
        receipt = replace(receipt, not_read=not_read)
    log.info("hang received", hang=str(receipt.hang), job=job, created=receipt.created)
    return receipt


def is_large(settings: Settings, body: Body) -> bool:
    """Return whether a body is an archive too large to be read while its sender waits."""
    if archive_at(body.path) is None:
        return False
    if body.size > MOST_AT_ONCE_BYTES:
        return True
    size = call(
        unpacked_size,
        *(body.path, trace_limits(settings), spool_directory(settings)),
        limits=allowance(body.size, settings.analysis_memory_limit_kib),
    )
    return size > MOST_AT_ONCE_BYTES


def files_of(settings: Settings, path: Path) -> tuple[list[HangFile], tuple[str, ...]]:
    """Return the files of an archive, read in a process of its own.

    Errors are those of `unpack_files` and `Call.result`.
    """
    return call(
        unpack_files,
        *(path, trace_limits(settings), spool_directory(settings)),
        limits=allowance(path.stat().st_size, settings.analysis_memory_limit_kib),
    )


def add_archive(
    container: Container, tx: UnitOfWork, job_id: int, files: Sequence[HangFile], sha256: bytes
) -> HangReceipt:
    """Store the hang of an archive's files, unless it is stored; the job's row must be locked."""
    existing = tx.session.execute(
        select(StoredHang.id).where(
            StoredHang.job_id == job_id, StoredHang.content_sha256 == sha256
        )
    ).scalar()
    if existing is not None:
        return HangReceipt(existing, created=False)
    give_hang_rule(tx)
    hang = StoredHang(id=uuid.uuid4(), job_id=job_id, content_sha256=sha256, created_at=tx.now)
    _set_verdict(tx, hang, hang_document(with_places(tx, job_id, job_of(files))))
    tx.session.add(hang)
    tx.session.flush()
    _store_files(tx, hang.id, files)
    look(container, tx, group_of_job(tx, job_id))
    return HangReceipt(hang.id, created=True)


def add_files(
    tx: UnitOfWork,
    job_id: int,
    files: Sequence[HangFile],
    hosts: Mapping[int, str] = MappingProxyType({}),
    gone: Collection[int] = (),
) -> HangReceipt:
    """Add single files to the job's open hang or to a new hang, and update the hang's verdict.

    A dump or stack of a rank replaces the process state that its host sent. The row of the job, or
    that of its group of alerts, is locked.

    Parameters
    ----------
    hosts : mapping of int to str
        Hosts by rank as the pulse has them, for jobs without a session.
    gone : collection of int
        Ranks whose pulse has stopped.
    """
    hang = tx.session.execute(
        select(StoredHang)
        .where(
            StoredHang.job_id == job_id,
            StoredHang.content_sha256.is_(None),
            StoredHang.over_at.is_(None),
            StoredHang.changed_at > tx.now - JOINED_WITHIN,
        )
        .order_by(StoredHang.created_at.desc())
        .limit(1)
    ).scalar()
    # A log does not show that a rank still answers.
    alive = {file.rank for file in files if file.kind is not FileKind.PROCESS and not file.is_log}
    latest: dict[tuple[FileKind, int | None], HangFile] = {}
    if hang is not None:
        stored = select(StoredHangFile.content).where(StoredHangFile.hang_id == hang.id)
        for content in tx.session.execute(stored).scalars():
            file = _FILE.validate_json(zstandard.decompress(content))
            if file.kind is not FileKind.PROCESS or file.rank not in alive:
                latest[file.kind, file.rank] = file
    # A log holds a part of what a dump does.
    dumped = {key for key, file in latest.items() if not file.is_log}
    files = [file for file in files if not file.is_log or (file.kind, file.rank) not in dumped]
    latest |= {(file.kind, file.rank): file for file in files}
    job = job_of(latest.values(), gone)
    if hosts:
        job = replace(job, places={rank: Place(host) for rank, host in hosts.items()})
    created = hang is None
    if hang is None:
        give_hang_rule(tx)
        hang = StoredHang(id=uuid.uuid4(), job_id=job_id, created_at=tx.now)
    _set_verdict(tx, hang, hang_document(with_places(tx, job_id, job)))
    tx.session.add(hang)
    tx.session.flush()
    tx.session.execute(
        delete(StoredHangFile).where(
            StoredHangFile.hang_id == hang.id,
            StoredHangFile.kind == FileKind.PROCESS,
            StoredHangFile.rank.in_([rank for rank in alive if rank is not None]),
        )
    )
    _store_files(tx, hang.id, files)
    return HangReceipt(hang.id, created=created)


def _set_verdict(tx: UnitOfWork, hang: StoredHang, document: HangDocument) -> None:
    verdict, since_ns = document.verdict, document.since_ns
    hang.changed_at = tx.now
    hang.kind, hang.sentence = verdict.kind, verdict.sentence
    hang.since = None
    if since_ns is not None and 0 < since_ns < _LATEST.timestamp() * 1e9:
        hang.since = datetime.fromtimestamp(since_ns / 1e9, UTC)
    hang.ranks, hang.waiting = len(document.ranks), len(verdict.waiting)
    hang.culprits, hang.confidence = len(verdict.culprits), verdict.confidence
    hang.document = zstandard.compress(to_json(document, compact=True).encode(), ZSTD_LEVEL)


def _store_files(tx: UnitOfWork, hang: uuid.UUID, files: Sequence[HangFile]) -> None:
    for file in files:
        content = zstandard.compress(to_json(file, compact=True).encode(), ZSTD_LEVEL)
        rank = _NO_RANK if file.rank is None else file.rank
        tx.session.execute(
            insert(StoredHangFile)
            .values(hang_id=hang, kind=file.kind, rank=rank, content=content)
            .on_conflict_do_update(
                index_elements=["hang_id", "kind", "rank"], set_={"content": content}
            )
        )


def limits_of(settings: Settings) -> Limits:
    """Return the limits of hang detection from the settings."""
    return Limits(int(settings.hang_after_s * 1e9), int(settings.pulse_interval_s * 1e9))


def has_open_hang(tx: Reads, job_id: int, attempt: int) -> bool:
    """Return whether an attempt has an open notice of a hang or of silent ranks."""
    return tx.session.execute(_open_hangs(job_id, attempt).limit(1)).first() is not None


def _open_hangs(job_id: int, attempt: int) -> Select[NoticeKind, list[int]]:
    return select(PulseNotice.kind, PulseNotice.ranks).where(
        PulseNotice.job_id == job_id,
        PulseNotice.attempt == attempt,
        PulseNotice.cleared_at.is_(None),
        PulseNotice.cleared_step.is_(None),
        PulseNotice.kind.in_(STANDING_STILL),
    )


def judge_live_files(
    tx: UnitOfWork,
    job_id: int,
    attempt: int,
    files: Sequence[HangFile],
    hosts: Mapping[int, str],
) -> None:
    """Add files that came with a pulse to the hang of an attempt while its notice is open.

    The job's group of alerts is locked.

    Parameters
    ----------
    hosts : mapping of int to str
        Hosts by rank.
    """
    if not files:
        return
    notices = tx.session.execute(_open_hangs(job_id, attempt)).all()
    if not notices:
        return
    gone = {rank for kind, ranks in notices if kind is NoticeKind.SILENT for rank in ranks}
    try:
        add_files(tx, job_id, files, hosts, gone)
    except InvalidTraceError as error:
        # The files contradict each other: the notice stays open without a verdict.
        log.warning("hang not judged", job=job_id, code=error.stable_code, files=len(files))
