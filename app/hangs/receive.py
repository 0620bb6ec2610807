"""Use case: receive files of a job that stands still, and store the verdict on it."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
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
from app.analysis.trace.compression import read_text
from app.errors import BodyTooLargeError, InvalidTraceError
from app.hangs.files import MOST_RAS_BYTES, FileKind, HangFile, job_of, read_hang_file
from app.hangs.models import StoredHang, StoredHangFile
from app.incidents.evaluate import look
from app.incidents.models.facts import STANDING_STILL
from app.incidents.rule_store import give_hang_rule
from app.incidents.store import group_of_job
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.resources import spool_directory
from app.platform.settings import Settings
from app.pulse.models import PulseNotice
from app.sessions.decoding import Body, trace_limits
from app.sessions.models.reports import ZSTD_LEVEL
from app.sessions.models.tables import Session
from app.sessions.receive import check_job_name, make_job
from app.sessions.recordings.archive import unpacked
from app.sessions.recordings.choose import archive_at


def with_places(tx: Reads, job_id: int, job: JobState) -> JobState:
    """Return what is known of a job, with where its ranks are as its latest session says."""
    meta: Mapping[str, Any] | None = tx.session.execute(
        select(Session.meta)
        .where(Session.job_id == job_id)
        .order_by(Session.received_at.desc())
        .limit(1)
    ).scalar()
    if not meta or meta.get("world") != len(job.world):
        # Of another size: its ranks are others.
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
    """Return the hosts of a job whose names may be those of containers, by its latest session."""
    guessed: Mapping[str, str] | None = tx.session.execute(
        select(Session.meta["guessed_hosts"])
        .join(Job, Job.id == Session.job_id)
        .where(Job.name == job)
        .order_by(Session.received_at.desc())
        .limit(1)
    ).scalar()
    return frozenset(guessed or ())


log = structlog.get_logger(__name__)

# Files that come one by one are of one hang as long as the last one came so shortly before.
TOGETHER: Final = timedelta(minutes=10)
# Of an archive, and of what is in it: a megabyte of dumps takes a tenth of a second.
MOST_AT_ONCE_BYTES: Final = 8 << 20
# Of a file about all ranks.
_NO_RANK: Final = -1
# Clocks of hosts may be anything.
_LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)
_FILE: Final = TypeAdapter(HangFile)


@dataclass(frozen=True, slots=True)
class HangReceipt:
    """The hang that a body is of.

    Parameters
    ----------
    created : bool
        Whether it made a hang; False where it is a further file of one, or was there already.
    not_read : tuple of str
        Names of the files of an archive that are of no kind that is read.
    """

    hang: uuid.UUID
    created: bool
    not_read: tuple[str, ...] = ()


def receive_hang(
    container: Container, job: str, body: Body, *, name: str = "", rank: int | None = None
) -> HangReceipt:
    """Read a body and store the verdict on the job.

    An archive is one hang, of all files in it; the same one again is the same hang. A file by
    itself is one of the job's latest hang while that goes on and its last file came within ten
    minutes, else it begins a hang; of a rank the latest file of each kind counts.

    Parameters
    ----------
    job : str
        Name of the job; made if it is new.
    name : str
        Of a file by itself: ends with its rank where `rank` is not given.

    Raises
    ------
    InvalidJobNameError, InvalidTraceError, InvalidArchiveError, BodyTooLargeError,
    QuotaExceededError
        Nothing is stored.
    """
    check_job_name(job)
    if archive_at(body.path) is None:
        found = read_hang_file(name or "the body", _file(container.settings, body.path), rank)
        if found is None:
            raise InvalidTraceError(
                "It is neither a flight recorder's dump nor py-spy's nor ncclras's",
                code="hang.unknown_file",
            )
        receipt = _add(container, job, found)
    else:
        files, not_read = unpack_files(container.settings, body.path)
        with container.uow() as tx:
            job_id = make_job(container, tx, job)
            receipt = add_archive(container, tx, job_id, files, body.sha256)
        receipt = replace(receipt, not_read=not_read)
    log.info("hang received", hang=str(receipt.hang), job=job, created=receipt.created)
    return receipt


def is_large(settings: Settings, body: Body) -> bool:
    """Return whether a body is an archive of more than is read while its sender waits."""
    if archive_at(body.path) is None:
        return False
    if body.size > MOST_AT_ONCE_BYTES:
        return True
    limits, directory = trace_limits(settings), spool_directory(settings)
    with unpacked(body.path, limits, directory=directory, nameless=True) as entries:
        return sum(entry.path.stat().st_size for entry in entries) > MOST_AT_ONCE_BYTES


def _file(settings: Settings, path: Path) -> bytes:
    """Return what is in a file, decompressed where it is compressed."""
    pieces, size = [], 0
    for piece in read_text(path, trace_limits(settings)):
        size += len(piece)
        if size > MOST_RAS_BYTES:
            raise BodyTooLargeError(f"A file of a hang has at most {MOST_RAS_BYTES} bytes.")
        pieces.append(piece)
    return b"".join(pieces)


def unpack_files(settings: Settings, path: Path) -> tuple[list[HangFile], tuple[str, ...]]:
    """Return the files of an archive, and the names of those that are of no kind that is read.

    One is in memory as it came at a time.

    Raises
    ------
    InvalidTraceError, InvalidArchiveError, BodyTooLargeError
    """
    files, not_read = [], []
    limits, directory = trace_limits(settings), spool_directory(settings)
    with unpacked(path, limits, directory=directory, nameless=True) as entries:
        for entry in entries:
            found = read_hang_file(entry.name, _file(settings, entry.path))
            if found is None:
                not_read.append(entry.name)
            else:
                files.append(found)
    return files, tuple(not_read)


def add_archive(
    container: Container, tx: UnitOfWork, job_id: int, files: Sequence[HangFile], sha256: bytes
) -> HangReceipt:
    """Store the hang of an archive's files, once; the job's row is locked."""
    # Of two equal archives the second finds the first.
    known = tx.session.execute(
        select(StoredHang.id).where(
            StoredHang.job_id == job_id, StoredHang.content_sha256 == sha256
        )
    ).scalar()
    if known is not None:
        return HangReceipt(known, created=False)
    give_hang_rule(tx)
    hang = StoredHang(id=uuid.uuid4(), job_id=job_id, content_sha256=sha256, created_at=tx.now)
    _judge(tx, hang, hang_document(with_places(tx, job_id, job_of(files))))
    tx.session.add(hang)
    tx.session.flush()
    _keep(tx, hang.id, files)
    look(container, tx, group_of_job(tx, job_id))
    return HangReceipt(hang.id, created=True)


def _add(container: Container, job: str, file: HangFile) -> HangReceipt:
    with container.uow() as tx:
        job_id = make_job(container, tx, job)
        receipt = join_files(tx, job_id, [file])
        look(container, tx, group_of_job(tx, job_id))
        return receipt


@dataclass(frozen=True, slots=True)
class Live:
    """What the pulse of a job says as well as its ranks' files.

    Parameters
    ----------
    hosts : mapping of int to str
        By rank, where no session says it.
    gone : frozenset of int
        Ranks of which nothing is heard any more.
    """

    hosts: Mapping[int, str] = field(default_factory=dict)
    gone: frozenset[int] = frozenset()


_NOT_LIVE: Final = Live()


def join_files(
    tx: UnitOfWork, job_id: int, files: Sequence[HangFile], live: Live = _NOT_LIVE
) -> HangReceipt:
    """Store files that come one by one with the job's hang that goes on, and judge it anew.

    What a rank says itself takes the place of what its host said of its process. The row of the
    job, or that of its group of alerts, is locked.
    """
    hang = tx.session.execute(
        select(StoredHang)
        .where(
            StoredHang.job_id == job_id,
            StoredHang.content_sha256.is_(None),
            StoredHang.over_at.is_(None),
            StoredHang.changed_at > tx.now - TOGETHER,
        )
        .order_by(StoredHang.created_at.desc())
        .limit(1)
    ).scalar()
    before = [] if hang is None else _files_of(tx, hang.id)
    speaking = {one.rank for one in files if one.kind is not FileKind.PROCESS}
    kept = {
        (one.kind, one.rank): one
        for one in before
        if one.kind is not FileKind.PROCESS or one.rank not in speaking
    } | {(one.kind, one.rank): one for one in files}
    job = job_of(kept.values(), live.gone)
    if live.hosts:
        job = replace(job, places={rank: Place(host) for rank, host in live.hosts.items()})
    created = hang is None
    if hang is None:
        give_hang_rule(tx)
        hang = StoredHang(id=uuid.uuid4(), job_id=job_id, created_at=tx.now)
    _judge(tx, hang, hang_document(with_places(tx, job_id, job)))
    tx.session.add(hang)
    tx.session.flush()
    _forget_processes(tx, hang.id, speaking)
    _keep(tx, hang.id, files)
    return HangReceipt(hang.id, created=created)


def _judge(tx: UnitOfWork, hang: StoredHang, document: HangDocument) -> None:
    verdict = document.verdict
    hang.changed_at = tx.now
    hang.kind, hang.sentence = verdict.kind, verdict.sentence
    hang.since = _moment(document.since_ns)
    hang.ranks, hang.waiting = len(document.ranks), len(verdict.waiting)
    hang.culprits, hang.confidence = len(verdict.culprits), verdict.confidence
    hang.document = zstandard.compress(to_json(document, compact=True).encode(), ZSTD_LEVEL)


def _moment(since_ns: int | None) -> datetime | None:
    """Return a time by a host's clock; None where that is none."""
    if since_ns is None or not 0 < since_ns < _LATEST.timestamp() * 1e9:
        return None
    return datetime.fromtimestamp(since_ns / 1e9, UTC)


def _keep(tx: UnitOfWork, hang: uuid.UUID, files: Sequence[HangFile]) -> None:
    rows = [
        {
            "hang_id": hang,
            "kind": one.kind,
            "rank": _NO_RANK if one.rank is None else one.rank,
            "content": zstandard.compress(to_json(one, compact=True).encode(), ZSTD_LEVEL),
        }
        for one in files
    ]
    insertion = insert(StoredHangFile)
    for row in rows:
        tx.session.execute(
            insertion.values(**row).on_conflict_do_update(
                index_elements=["hang_id", "kind", "rank"], set_={"content": row["content"]}
            )
        )


def _forget_processes(tx: UnitOfWork, hang: uuid.UUID, speaking: Collection[int | None]) -> None:
    """Drop what hosts said of the processes of ranks that speak again."""
    ranks = [rank for rank in speaking if rank is not None]
    tx.session.execute(
        delete(StoredHangFile).where(
            StoredHangFile.hang_id == hang,
            StoredHangFile.kind == FileKind.PROCESS,
            StoredHangFile.rank.in_(ranks),
        )
    )


def _files_of(tx: UnitOfWork, hang: uuid.UUID) -> Iterator[HangFile]:
    rows = tx.session.execute(
        select(StoredHangFile.content).where(StoredHangFile.hang_id == hang)
    ).scalars()
    for content in rows:
        yield _FILE.validate_json(zstandard.decompress(content))


# Files that come with a pulse.
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
