"""Multipart bodies, read as they come: `meta` and `labels` into memory, `trace` to the spool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from app.api.sessions.spool import Spool
from app.errors import Fault, PacelineError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

META_PART: Final = "meta"
LABELS_PART: Final = "labels"
TRACE_PART: Final = "trace"
# Content-Disposition and Content-Type of a part fit many times.
MAX_PART_HEADER_BYTES: Final = 4096


class MalformedMultipartError(PacelineError):
    """The parts of a multipart body cannot be told apart, or are not those that there may be."""

    code = "multipart.invalid"


@dataclass(frozen=True, slots=True)
class MultipartParts:
    """What came with the trace: texts, and the trace part's own content type."""

    meta: str | None
    labels: str | None
    trace_content_type: str | None


class MultipartReader:
    """Parser of one multipart body.

    Parameters
    ----------
    content_type : str
        Of the request, with the boundary.
    spool : Spool
        Receives the bytes of the part `trace`.
    max_meta_bytes : int
        Of the parts `meta` and `labels`, each.

    Raises
    ------
    MalformedMultipartError
        If the content type has no boundary.
    """

    def __init__(self, content_type: str, spool: Spool, *, max_meta_bytes: int) -> None:
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if not boundary:
            raise MalformedMultipartError("The content type names no boundary.")
        callbacks: MultipartCallbacks = {
            "on_part_begin": self._part_begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_end": self._end,
        }
        self._parser = MultipartParser(boundary, callbacks)
        self._spool = spool
        self._max_meta_bytes = max_meta_bytes
        self._header_bytes = 0
        self._name = bytearray()
        self._value = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._part = ""
        self._seen: set[str] = set()
        self._texts = {META_PART: bytearray(), LABELS_PART: bytearray()}
        self._trace_content_type: str | None = None
        self._trace_data: list[bytes] = []
        self._complete = False

    async def feed(self, chunk: bytes) -> None:
        """Parse the next bytes of the body.

        Raises
        ------
        MalformedMultipartError, BodyTooLargeError, BusyError
        """
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise MalformedMultipartError(f"The multipart body is malformed: {error}.") from error
        for data in self._trace_data:
            await self._spool.write(data)
        self._trace_data.clear()

    def finish(self) -> MultipartParts:
        """Return the parts once the body has ended.

        Raises
        ------
        MalformedMultipartError
            If it ended before its last boundary, or has no part `trace`.
        """
        if not self._complete:
            raise MalformedMultipartError("The multipart body ends before its last boundary.")
        if TRACE_PART not in self._seen:
            raise MalformedMultipartError(f"There is no part named {TRACE_PART}.")
        return MultipartParts(
            self._text(META_PART), self._text(LABELS_PART), self._trace_content_type
        )

    def _text(self, part: str) -> str | None:
        try:
            return self._texts[part].decode() if part in self._seen else None
        except UnicodeDecodeError as error:
            raise MalformedMultipartError(f"The part {part} is not UTF-8.") from error

    def _part_begin(self) -> None:
        self._headers = {}
        self._header_bytes = 0

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _headers_finished(self) -> None:
        options = parse_options_header(self._headers.get(b"content-disposition"))[1]
        part = options.get(b"name", b"").decode("utf-8", "replace")
        if part not in (*self._texts, TRACE_PART):
            raise MalformedMultipartError(
                f"The only parts are {META_PART}, {LABELS_PART} and {TRACE_PART}.",
                faults=(Fault("unknown_part", "This part is not known.", column=part),),
            )
        if part in self._seen:
            raise MalformedMultipartError(f"The part {part} comes twice.")
        self._seen.add(part)
        self._part = part
        if part == TRACE_PART:
            content_type = self._headers.get(b"content-type")
            self._trace_content_type = content_type.decode("latin-1") if content_type else None

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._part == TRACE_PART:
            self._trace_data.append(data[start:end])
            return
        text = self._texts[self._part]
        text += data[start:end]
        if len(text) > self._max_meta_bytes:
            raise MalformedMultipartError(
                f"The part {self._part} is over its limit of {self._max_meta_bytes} bytes.",
                code="body.too_large",
            )

    def _end(self) -> None:
        self._complete = True

    def _count_header(self, count: int) -> None:
        self._header_bytes += count
        if self._header_bytes > MAX_PART_HEADER_BYTES:
            raise MalformedMultipartError("The headers of a part are too long.")
