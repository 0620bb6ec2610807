"""Intake of request bodies, from the network to the database, for whole sessions and chunks.

The event loop streams, counts, hashes and spools a body, within its own limits (`app.web.bodies`)
and the server's byte budget. Then a thread of a separate limiter stores it, so that many senders
leave pages their threads. Small bodies are stored together, many per transaction (`BatchWriter`).
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import anyio
import structlog
from anyio import CapacityLimiter
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from app.access.guard import container_of
from app.analysis.trace.formats.kind import COMPRESSIONS
from app.analysis.trace.formats.registry import FORMATS
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import load_metadata, parse_metadata
from app.analysis.trace.model import SessionMeta
from app.errors import (
    BusyError,
    InvalidLabelsError,
    InvalidMetadataError,
    PacelineError,
    TryLaterError,
    UnsupportedFormatError,
)
from app.installation.metrics import Exposition
from app.platform.container import Container
from app.platform.database.states import InboxKind
from app.platform.resources import Place, Sum, spool_directory
from app.platform.settings import MIB
from app.pulse.receive import ArrivedPulse, PulseReply, receive_pulses
from app.sessions.api.spool import ByteBudget, MultipartParts, MultipartReader, Spool, SpooledBody
from app.sessions.body import Body
from app.sessions.chunks.inbox import ArrivedChunk, ChunkReceipt, Pressure
from app.sessions.chunks.receive import receive_together
from app.sessions.recordings.choose import MEDIA_TYPES as ARCHIVES
from app.sessions.recordings.labels import read_labels
from app.web import problems
from app.web.bodies import arriving
from app.web.problems import RETRY_AFTER_S

# Limits of the bodies and of their bytes in one transaction.
MOST: Final = 64
MOST_BYTES: Final = 4 * MIB
# Requests answered in one turn of the event loop, so that other requests get turns between them.
ANSWERED_AT_ONCE: Final = 8
# After a transaction of at least this number of bodies, the next transaction waits longer for
# bodies.
_MANY: Final = 8

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Item, Outcome]):
    container: Container
    item: Item
    group: Hashable
    size: int
    outcome: asyncio.Future[Outcome | None]


class BatchWriter(Generic[Item, Outcome]):
    """Stores small bodies of many requests in shared transactions; used on one event loop only.

    A commit for each of a thousand senders would compete with pages for the interpreter.

    Parameters
    ----------
    store : callable
        Stores bodies of one scope and group in a thread and returns the outcome of each; None for
        a body that has to be stored alone.
    gather_s : float
        Time that a body waits for other bodies, unless a full transaction is waiting.
    many_gather_s : float
        The same after a transaction of at least eight bodies, if longer.
    most : int
        Limit of the bodies in a transaction.
    """

    def __init__(
        self,
        store: Callable[[Container, Sequence[Item]], Sequence[Outcome | None]],
        *,
        gather_s: float = 0.0,
        many_gather_s: float = 0.0,
        most: int = MOST,
    ) -> None:
        self._store = store
        self._many_gather_s = max(gather_s, many_gather_s)
        self._last = 0
        self._most = most
        self._gather_s = gather_s
        self._queue: deque[_Waiting[Item, Outcome]] = deque()
        self._storing: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()
        # Only one transaction runs at a time; bodies that arrive meanwhile form the next
        # transaction.
        self._limiter = CapacityLimiter(1)

    @property
    def waiting(self) -> int:
        """Return the number of bodies that wait for a transaction."""
        return len(self._queue)

    async def receive(
        self, container: Container, item: Item, *, size: int, group: Hashable = None
    ) -> Outcome | None:
        """Store a body; return the outcome that `store` returns for the body, or None.

        Parameters
        ----------
        size : int
            Size of the body in bytes.
        group : hashable, optional
            Bodies of different groups share no transaction; by default a project is one group.
        """
        outcome: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(container, item, (container.scope, group), size, outcome))
        if self._storing is None:
            self._storing = asyncio.create_task(self._store_all())
        return await outcome

    async def _store_all(self) -> None:
        try:
            while self._queue:
                if self._gather_s and len(self._queue) < self._most:
                    many = self._last >= _MANY
                    await asyncio.sleep(self._many_gather_s if many else self._gather_s)
                batch = self._take()
                self._last = len(batch)
                try:
                    outcomes = await anyio.to_thread.run_sync(
                        self._store,
                        batch[0].container,
                        [waiting.item for waiting in batch],
                        limiter=self._limiter,
                    )
                except Exception as error:  # noqa: BLE001 - each request raises it
                    for waiting in batch:
                        if not waiting.outcome.done():
                            waiting.outcome.set_exception(error)
                else:
                    # The requests of this batch are answered while the next batch is stored.
                    answering = asyncio.create_task(_answer(batch, outcomes))
                    self._answering.add(answering)
                    answering.add_done_callback(self._answering.discard)
        finally:
            self._storing = None

    def _take(self) -> list[_Waiting[Item, Outcome]]:
        """Dequeue the oldest body, with bodies of its group that fit into one transaction."""
        group = self._queue[0].group
        batch: list[_Waiting[Item, Outcome]] = []
        others: list[_Waiting[Item, Outcome]] = []
        size = 0
        while self._queue and len(batch) < self._most and size < MOST_BYTES:
            waiting = self._queue.popleft()
            if waiting.group == group:
                batch.append(waiting)
                size += waiting.size
            else:
                others.append(waiting)
        self._queue.extendleft(reversed(others))
        return batch


async def _answer(
    batch: Sequence[_Waiting[Item, Outcome]], outcomes: Sequence[Outcome | None]
) -> None:
    """Resolve waiting requests, a few per turn of the event loop, so that pages get turns too."""
    for number, (waiting, outcome) in enumerate(zip(batch, outcomes, strict=True), 1):
        if not waiting.outcome.done():
            waiting.outcome.set_result(outcome)
        if not number % ANSWERED_AT_ONCE:
            await asyncio.sleep(0)


log = structlog.get_logger(__name__)

R = TypeVar("R")

# Threads that write and hash bodies; threads that store bodies have a separate limiter.
SPOOL_THREADS: Final = 4

# Initial value, in seconds, of the moving average of the time to store a body, and the weight of
# the latest body in it.
STORING_S: Final = 0.1
LAST_COUNTS: Final = 0.1
# A body with a longer expected wait is refused with Retry-After, before its sender times out.
LONGEST_WAIT_S: Final = 30.0
# A refused body up to this size is read to its end, so that the connection can be used again.
DRAINED_BYTES: Final = MIB
# A body up to this size stays in memory and is stored in one transaction with other bodies.
SMALL_BYTES: Final = MIB // 4

# Pulses wait before they are stored together: no sender depends on the answer, a worker reads
# pulses every two seconds, and each transaction occupies the interpreter for 8 ms in which no page
# is served. When many pulses arrive they wait longer, up to a small share of the interval between
# two pulses of a host.
PULSES_GATHER_S: Final = 0.1
MANY_PULSES_GATHER_S: Final = 0.5
MANY_PULSES_SHARE: Final = 0.1
PULSES_TOGETHER: Final = 256

MULTIPART: Final = "multipart/form-data"

# Media types that do not identify the format (curl sends the form's by default): the decoder
# detects the format from the bytes.
UNDECLARED: Final = frozenset(
    {"", "application/octet-stream", "binary/octet-stream", "application/x-www-form-urlencoded"}
)
# Media types of compressed bodies.
COMPRESSED: Final = frozenset(
    media_type for compression in COMPRESSIONS for media_type in compression.media_types
)
DECLARED: Final = frozenset(
    media_type for trace_format in FORMATS.values() for media_type in trace_format.media_types
)
# Media types of text formats: only these may have a Content-Encoding, which the decoder undoes.
TEXT: Final = frozenset(
    media_type
    for trace_format in FORMATS.values()
    if trace_format.text
    for media_type in trace_format.media_types
)

# Magic bytes that start a body, by its Content-Encoding.
ENCODINGS: Final = {
    coding: compression.magic for compression in COMPRESSIONS for coding in compression.codings
}

# nginx's status for a connection that the client closed; it appears only in logs.
CLIENT_CLOSED_REQUEST: Final = 499


def _content(*more: str) -> dict[str, Any]:
    """Return the OpenAPI request body of a route that takes traces and the media types `more`."""
    types = (*(trace_format.media_types[0] for trace_format in FORMATS.values()), *more)
    return {
        "requestBody": {
            "required": True,
            "content": {
                **{name: {"schema": {"type": "string"}} for name in types},
                MULTIPART: {
                    "schema": {
                        "type": "object",
                        "required": ["trace"],
                        "properties": {
                            "meta": {"type": "string", "description": "YAML or JSON"},
                            "labels": {
                                "type": "string",
                                "description": "Patterns of the names of ranges, and the operation "
                                "type of each; YAML or JSON",
                            },
                            "trace": {"type": "string", "format": "binary"},
                        },
                    }
                },
            },
        }
    }


TRACE_CONTENT: Final = _content()
# A whole session may also arrive as an archive of its files.
SESSION_CONTENT: Final = _content("application/x-tar", "application/zip")

# Responses for refused bodies, common to all routes that take a trace.
REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    413: problems.described("Over a limit, as it is or decompressed"),
    415: problems.described("A format or content encoding that is not known"),
    422: problems.described("Not a trace or metadata that can be stored"),
    429: problems.described("The server is behind; Retry-After says when to try again"),
}


class UnsupportedEncodingError(PacelineError):
    """The Content-Encoding is not allowed for the body, or does not match the body's bytes."""

    code = "encoding.unsupported"


class QueryMetadata(BaseModel):
    """Query with the job's sizes, for traces without them in the body or in the part `meta`."""

    model_config = ConfigDict(extra="forbid")

    dp: int | None = Field(None, description="Data-parallel size.")
    pp: int | None = Field(None, description="Pipeline stages.")
    tp: int | None = Field(None, description="Tensor-parallel size; 1 unless given.")
    cp: int | None = Field(None, description="Context-parallel size; 1 unless given.")
    vpp: int | None = Field(None, description="Model chunks a stage; 1 unless given.")
    world: int | None = Field(None, description="Ranks: dp · pp · tp · cp.")
    trial_name: str | None = None
    run_id: str | None = None
    format: str | None = Field(
        None, description="Name of the body's format; unless given, the bytes say it."
    )
    labels: str | None = Field(
        None, description="Patterns of names of ranges, and the operation type of each, as JSON."
    )

    def meta(self) -> SessionMeta | None:
        """Return the metadata from the query, or None if the query has none."""
        given = self.model_dump(exclude_none=True, exclude={"format", "labels"})
        return parse_metadata(given) if given else None


@dataclass(frozen=True, slots=True)
class _BodyHeaders:
    """Description of a received body: media type, Content-Encoding, metadata."""

    encoding: str | None
    content_type: str | None
    meta: SessionMeta | None
    format_name: str | None
    labels: str | None

    def of_file(self, spooled: SpooledBody) -> Body:
        """Return a body in a spool file, with this description."""
        return self._body(spooled.path, spooled.size, spooled.sha256, spooled.head)

    def in_memory(self, content: bytes) -> Body:
        """Return a body in memory, with this description."""
        return self._body(content, len(content), None, content)

    def _body(self, source: Path | bytes, size: int, digest: bytes | None, head: bytes) -> Body:
        if self.encoding is not None and not head.startswith(ENCODINGS[self.encoding]):
            raise UnsupportedEncodingError(
                f"The body is not encoded as its Content-Encoding says: {self.encoding}."
            )
        return Body(
            source=source,
            size=size,
            digest=digest,
            content_type=self.content_type,
            meta=self.meta,
            format_name=self.format_name,
            own=None if self.labels is None else read_labels(self.labels),
        )


def ingest_of(request: Request) -> Ingest:
    """Return the `Ingest` of the application that handles a request."""
    ingest: Ingest = request.app.state.ingest
    return ingest


class Ingest:
    """The intake of one application: byte budget, limiters, backpressure and batches."""

    def __init__(
        self, container: Container, metrics: Exposition, place: Place | None = None
    ) -> None:
        settings = container.settings
        self.container = container
        self.metrics = metrics
        self._settings = settings
        self._directory = spool_directory(settings)
        self._budget = ByteBudget(
            settings.ingest_budget_bytes, None if place is None else Sum(place, "spooled")
        )
        self._spool_limiter = CapacityLimiter(SPOOL_THREADS)
        self._store_limiter = CapacityLimiter(settings.ingest_concurrency)
        self._max_meta_bytes = Limits().max_header_bytes
        self.pressure = Pressure(settings)
        self.chunks: BatchWriter[ArrivedChunk, ChunkReceipt] = BatchWriter(self._store_chunks)
        self.pulse_pressure = Pressure(settings, InboxKind.PULSE)
        self.pulses: BatchWriter[ArrivedPulse, PulseReply] = BatchWriter(
            self._store_pulses,
            gather_s=PULSES_GATHER_S,
            many_gather_s=min(MANY_PULSES_GATHER_S, MANY_PULSES_SHARE * settings.pulse_interval_s),
            most=PULSES_TOGETHER,
        )
        self._storing_s = STORING_S
        metrics.ingest_spooled.set_function(lambda: self._budget.used)
        metrics.ingest_waiting.set_function(self._waiting)
        metrics.spool_free.set_function(lambda: shutil.disk_usage(self._directory).free)

    async def receive(  # noqa: PLR0913 - the steps of a body
        self,
        request: Request,
        query: QueryMetadata,
        *,
        check: Callable[[], None],
        store: Callable[[Body], R],
        refused: Callable[[int, str], None] | None = None,
        soon: Callable[[Body], Awaitable[R | None]] | None = None,
        held_bytes: int | None = None,
        most_bytes: int | None = None,
    ) -> R:
        """Receive one body and store it; return the outcome that `store` returns.

        Parameters
        ----------
        check : callable
            Raises for a request that is refused before its body is read.
        store : callable
            Stores the body in a thread and returns the outcome.
        refused : callable, optional
            Called in a thread if the body is refused, unless a retry may succeed, with the bytes
            received so far and the problem's code.
        soon : callable, optional
            Stores a small body from memory; if it returns None, `store` is called.
        held_bytes : int, optional
            Largest body in bytes that `store` gets in memory; by default it gets every body as a
            file.
        most_bytes : int, optional
            Limit of the body, if lower than that of the settings.
        """
        most = self._settings.max_body_bytes
        arriving(request).max_commas = None
        arriving(request).limit = most if most_bytes is None else min(most, most_bytes)
        spool = Spool(self._directory, self._budget, self._spool_limiter)
        try:
            async with spool:
                check()
                headers = await self._arrive(request, query, spool)
                most_held = held_bytes if soon is None else SMALL_BYTES
                content = None if most_held is None else spool.held(most_held)
                if content is None:
                    body = cache(partial(headers.of_file, await spool.finish()))
                else:
                    body = cache(partial(headers.in_memory, content))
                    outcome = None if soon is None else await soon(body())
                    if outcome is not None:
                        return outcome
                return await anyio.to_thread.run_sync(
                    self._timed, store, body, limiter=self._store_limiter
                )
        except ClientDisconnect:
            self.metrics.ingest_cut.inc()
            raise
        except PacelineError as error:
            self.metrics.ingest_refusals.labels(error.stable_code).inc()
            self.metrics.ingest_refused_bytes.inc(spool.size)
            log.info(
                "body refused",
                path=request.url.path,
                sender=container_of(request).principal.name,
                code=error.stable_code,
                bytes=spool.size,
            )
            if isinstance(error, BusyError):
                patience_s = RETRY_AFTER_S + self._queue_s()
                raise BusyError(error.message, retry_after_s=patience_s) from error
            if refused is not None and spool.size and not isinstance(error, TryLaterError):
                await anyio.to_thread.run_sync(
                    refused, spool.size, error.stable_code, limiter=self._store_limiter
                )
            raise
        finally:
            self.metrics.ingest_bytes.inc(spool.size)

    async def _arrive(self, request: Request, query: QueryMetadata, spool: Spool) -> _BodyHeaders:
        media_type = _media_type(request.headers.get("content-type"))
        encoding = _encoding(request, media_type)
        meta, labels = query.meta(), query.labels
        queue_s = self._queue_s()
        if self._waiting() >= self._settings.ingest_queue or queue_s > LONGEST_WAIT_S:
            announced = request.headers.get("content-length", "")
            if announced.isdecimal() and int(announced) <= DRAINED_BYTES:
                async for _ in request.stream():
                    pass
            raise BusyError("Too many bodies wait to be stored; send this one later.")

        content_type = media_type
        if media_type == MULTIPART:
            parts = await self._read_parts(request, spool)
            content_type = _media_type(parts.trace_content_type)
            if content_type == MULTIPART:
                raise UnsupportedFormatError("A part cannot have parts of its own.")
            if parts.meta is not None:
                if meta is not None:
                    raise InvalidMetadataError(
                        "The metadata comes twice: as query parameters and as a part.",
                        code="metadata.conflict",
                    )
                meta = load_metadata(parts.meta)
            if labels is not None and parts.labels is not None:
                raise InvalidLabelsError(
                    "The labels come twice: as a query parameter and as a part.",
                    code="labels.conflict",
                )
            labels = labels if parts.labels is None else parts.labels
        else:
            async for chunk in request.stream():
                await spool.write(chunk)
        return _BodyHeaders(
            encoding=encoding,
            content_type=None if content_type in UNDECLARED | ARCHIVES else content_type,
            meta=meta,
            format_name=query.format,
            labels=labels,
        )

    async def _read_parts(self, request: Request, spool: Spool) -> MultipartParts:
        reader = MultipartReader(
            request.headers["content-type"], spool, max_meta_bytes=self._max_meta_bytes
        )
        async for chunk in request.stream():
            await reader.feed(chunk)
        return reader.finish()

    def _queue_s(self) -> float:
        """Return the expected time that a body waits until it is stored, in seconds."""
        waiting = self._store_limiter.statistics().tasks_waiting
        return waiting / self._settings.ingest_concurrency * self._storing_s

    def _timed(self, store: Callable[[Body], R], body: Callable[[], Body]) -> R:
        began_s = time.monotonic()
        try:
            return store(body())
        finally:
            # Not locked: threads may overwrite each other's update, which is acceptable for an
            # estimate.
            self._storing_s += LAST_COUNTS * (time.monotonic() - began_s - self._storing_s)

    def _waiting(self) -> int:
        gathering = self.chunks.waiting + self.pulses.waiting
        return self._store_limiter.statistics().tasks_waiting + gathering

    def _store_chunks(
        self, container: Container, chunks: Sequence[ArrivedChunk]
    ) -> Sequence[ChunkReceipt | None]:
        self.pressure.check(container.everywhere())
        return receive_together(container, chunks[0].path.session_path, chunks)

    def _store_pulses(
        self, container: Container, pulses: Sequence[ArrivedPulse]
    ) -> Sequence[PulseReply | None]:
        self.pulse_pressure.check(container.everywhere())
        return receive_pulses(container, pulses)


def _media_type(content_type: str | None) -> str:
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type in UNDECLARED | COMPRESSED | DECLARED | ARCHIVES or media_type == MULTIPART:
        return media_type
    raise UnsupportedFormatError(f"Bodies of type {media_type} are not accepted.")


def _encoding(request: Request, media_type: str) -> str | None:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding == "identity":
        return None
    if encoding not in ENCODINGS or media_type not in UNDECLARED | COMPRESSED | TEXT | ARCHIVES:
        titles = ", ".join(listed.title for listed in FORMATS.values() if listed.text)
        raise UnsupportedEncodingError(
            f"Content-Encoding {encoding} is not accepted here; {titles} may come as gzip or zstd."
        )
    return encoding
