"""Typed documents in the database: columns of JSON, and stored reports."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeVar

import zstandard
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import ColumnElement, Dialect, Text, cast, type_coerce
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator

from app.alerts.facts import HangFacts
from app.analysis.budget.document import Shares
from app.analysis.diagnosis.past.computing import Computing
from app.analysis.hangs.document import HangDocument
from app.analysis.json_text import plain
from app.analysis.pulse.notices import Evidence
from app.analysis.report.coverage import Chunks
from app.analysis.report.document import OLDEST_REVISION, REVISION, SCHEMA, Report
from app.analysis.report.verdict import SessionVerdict, VerdictCause
from app.errors import Fault, UnknownDocumentError
from app.inputs.retention import RetentionRules

T = TypeVar("T")

REPORT: Final = TypeAdapter(Report)
_HANG: Final = TypeAdapter(HangDocument)


class JsonDocument(TypeDecorator[T]):
    """A column that holds a dataclass as JSON.

    Parameters
    ----------
    adapter : TypeAdapter
        Of the dataclass.
    """

    impl = JSONB(none_as_null=True)
    cache_ok = True

    def __init__(self, adapter: TypeAdapter[T]) -> None:
        super().__init__()
        self.adapter = adapter

    def column_expression(self, column: ColumnElement[T]) -> ColumnElement[T]:
        """Return the column as its text, from which the dataclass is read at once."""
        return type_coerce(cast(column, Text), self)

    def process_bind_param(self, value: T | None, dialect: Dialect) -> object:
        """Return what is stored."""
        del dialect
        return None if value is None else plain(value)

    def process_result_value(self, value: object, dialect: Dialect) -> T | None:
        """Return what was stored."""
        del dialect
        if isinstance(value, str):
            return None if value == "null" else self.adapter.validate_json(value)
        # Of a statement that no expression is put into, such as one that inserts rows.
        return None if value is None else self.adapter.validate_python(value)


class DumpedDocument(JsonDocument[T]):
    """The same of a dataclass with identifiers and times, which its adapter writes as texts."""

    cache_ok = True

    def process_bind_param(self, value: T | None, dialect: Dialect) -> object:
        """Return what is stored."""
        del dialect
        return None if value is None else self.adapter.dump_python(value, mode="json")


CHUNKS: Final = JsonDocument(TypeAdapter(Chunks))
# Of a body that was refused.
FAULTS: Final = JsonDocument(TypeAdapter(tuple[Fault, ...]))
EVIDENCE: Final = JsonDocument(TypeAdapter(Evidence))
VERDICT: Final = JsonDocument(TypeAdapter(SessionVerdict))
# Of a stored verdict.
CAUSES: Final = JsonDocument(TypeAdapter(tuple[VerdictCause, ...]))
SHARES: Final = JsonDocument(TypeAdapter(Shares))
COMPUTING: Final = JsonDocument(TypeAdapter(Computing))
RETENTION: Final = JsonDocument(TypeAdapter(RetentionRules))
HANG_FACTS: Final = DumpedDocument(TypeAdapter(HangFacts))


@dataclass(frozen=True, slots=True)
class _Version:
    """What a document says of its own version."""

    schema: str
    revision: int


_VERSION: Final = TypeAdapter(_Version)


def open_report(text: bytes) -> Report:
    """Return a stored report, upgraded to this revision: what an older one lacks has no value.

    Raises
    ------
    UnknownDocumentError
        ``report.unknown_version``: another version of Paceline stored it.
    """
    try:
        report = REPORT.validate_json(text)
    except ValidationError:
        # One of another version may differ in more than it says of itself.
        check_version(text)
        raise
    _require_known(report.schema, report.revision)
    return replace(report, revision=REVISION)


def open_hang(stored: bytes) -> HangDocument:
    """Return a stored document of a hang."""
    return _HANG.validate_json(zstandard.decompress(stored))


def check_version(text: bytes) -> None:
    """Refuse a stored report that this version does not read, as `open_report` does."""
    version = _VERSION.validate_json(text)
    _require_known(version.schema, version.revision)


def _require_known(schema: str, revision: int) -> None:
    if schema != SCHEMA or not OLDEST_REVISION <= revision <= REVISION:
        raise UnknownDocumentError(
            f"The report is {schema}, revision {revision}; this version of "
            f"Paceline reads {SCHEMA}, revision {REVISION}. A later one stored it.",
            code="report.unknown_version",
        )
