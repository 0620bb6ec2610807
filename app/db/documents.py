"""Typed documents in the database: columns of JSON, and reports that earlier versions stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import Dialect
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.diagnosis.loss import MOST_UNKNOWN
from app.analysis.diagnosis.verdict import without_causes
from app.analysis.json_text import plain, to_json
from app.analysis.report.coverage import Chunks
from app.analysis.report.document import REVISION, SCHEMA, Report
from app.analysis.report.summary import Summary
from app.errors import UnknownDocumentError
from app.inputs.keeping import RetentionRules

T = TypeVar("T")
Upgrade: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

REPORT: Final = TypeAdapter(Report)


def _with_headline(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report of version 0.1.0 as revision 2.

    Its replay was adapted to nothing. What the causes leave of a step follows from the slowdown
    that its diagnosis has; how sure that is only another analysis can say.
    """
    causes = report["causes"]
    unknown = sum(c["contribution"] for c in causes if c["cause"] == "unknown")
    by_causes = any(c["cause"] != "unknown" for c in causes) and unknown <= MOST_UNKNOWN
    slowdown = report["diagnosis"]["slowdown"] if by_causes else report["slowdown"]
    simulated = report["step_times"]["simulated"]
    headline = {
        "slowdown": slowdown,
        "ci95": None if by_causes else report["slowdown_ci95"],
        "reference_step_time_s": sum(simulated) / len(simulated) / slowdown,
        "kind": HeadlineKind.CAUSES if by_causes else HeadlineKind.PUBLISHED,
    }
    verdict = report["verdict"]
    if by_causes and verdict["level"] == "slow":
        _, because, why = verdict["sentence"].partition(" because ")
        named = sum(c["cause"] != "unknown" for c in causes)
        sentence = f"{slowdown:.2f}× slower than {without_causes(named)}: {why}"
        verdict = verdict | {"sentence": sentence if because else verdict["sentence"]}
    return report | {
        "revision": 2,
        "fidelity": report["fidelity"] | {"adaptations": []},
        "headline": headline,
        "verdict": verdict,
    }


# By revision: what makes a stored report of it one of the next revision.
UPGRADES: Final[Mapping[int, Upgrade]] = {1: _with_headline}


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

    def process_bind_param(self, value: T | None, dialect: Dialect) -> object:
        """Return what is stored."""
        del dialect
        return None if value is None else plain(value)

    def process_result_value(self, value: object, dialect: Dialect) -> T | None:
        """Return what was stored."""
        del dialect
        return None if value is None else self.adapter.validate_python(value)


CHUNKS: Final = JsonDocument(TypeAdapter(Chunks))
SUMMARY: Final = JsonDocument(TypeAdapter(Summary))
RETENTION: Final = JsonDocument(TypeAdapter(RetentionRules))


@dataclass(frozen=True, slots=True)
class _Version:
    """What a document says of its own version; reports of revision 1 do not name it."""

    schema: str
    revision: int = 1


_VERSION: Final = TypeAdapter(_Version)


def open_report(
    text: bytes, revision: int = REVISION, upgrades: Mapping[int, Upgrade] = UPGRADES
) -> Report:
    """Return a stored report, whichever version stored it.

    Parameters
    ----------
    text : bytes
        JSON.
    revision : int
        The revision that `Report` describes.
    upgrades : mapping of int to callable
        By revision, what makes it the next one.

    Raises
    ------
    UnknownDocumentError
        ``report.unknown_version``: a later version of Paceline stored it.
    """
    version = _version(text, revision)
    if version.revision == revision:
        return REPORT.validate_json(text)
    document = json.loads(text)
    for old in range(version.revision, revision):
        document = upgrades[old](document)
    return REPORT.validate_python(document)


def current_report(text: bytes) -> bytes:
    """Return the JSON of a stored report as this version writes it; raises as `open_report` does.

    What this version stored goes out as it is.
    """
    if _version(text, REVISION).revision == REVISION:
        return text
    return to_json(open_report(text), compact=True).encode()


def _version(text: bytes, revision: int) -> _Version:
    version = _VERSION.validate_json(text)
    if version.schema != SCHEMA or version.revision > revision:
        raise UnknownDocumentError(
            f"The report is {version.schema}, revision {version.revision}; this version of "
            f"Paceline reads {SCHEMA} up to revision {revision}. A later one stored it.",
            code="report.unknown_version",
        )
    return version
