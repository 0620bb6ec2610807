"""The stored result of a search: its document, its iteration, its outline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import zstandard
from pydantic import TypeAdapter

from app.analysis.json_text import to_json
from app.analysis.planning.document import (
    SCHEMA,
    IterationTimes,
    PlanDocument,
    SimulatedIteration,
)
from app.analysis.planning.job.document import JobDocument
from app.db.reports import ZSTD_LEVEL
from app.errors import UnknownDocumentError


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What was found; `plan.schema` is the version of the whole."""

    plan: PlanDocument
    timeline: SimulatedIteration


@dataclass(frozen=True, slots=True)
class JobResult:
    """What was found for a whole job, and the slowest pipeline's iteration."""

    plan: JobDocument
    timeline: SimulatedIteration


@dataclass(frozen=True, slots=True)
class PlanOutline:
    """What a list shows of a plan."""

    iteration_time_ms: IterationTimes
    stages: int
    optimal: bool
    over: Mapping[str, float]
    """How much longer than the plan the other methods' templates take when executed."""

    @classmethod
    def of(cls, document: PlanDocument | JobDocument) -> Self:
        """Return a plan's outline; a whole job's stages are those of its longest pipeline."""
        if isinstance(document, JobDocument):
            times = document.iteration_time_ms
            return cls(
                iteration_time_ms=IterationTimes(times.t_std, None, times.simulated),
                stages=document.parallelism.pp,
                optimal=document.optimal,
                over={},
            )
        return cls(
            iteration_time_ms=document.iteration_time_ms,
            stages=len(document.stages),
            optimal=document.optimal,
            over={name: document.over(other) for name, other in document.others.items()},
        )


@dataclass(frozen=True, slots=True)
class _Version:
    """What a plan says of its own version."""

    schema: str


@dataclass(frozen=True, slots=True)
class _VersionedResult:
    """What a result of any version has."""

    plan: _Version


_VERSION: Final = TypeAdapter(_VersionedResult)
_RESULT: Final[TypeAdapter[PlanResult | JobResult]] = TypeAdapter(PlanResult | JobResult)


def pack_result(result: PlanResult | JobResult) -> bytes:
    """Return a result as it is stored: JSON, compressed."""
    return zstandard.compress(to_json(result, compact=True).encode(), ZSTD_LEVEL)


def unpack_result(stored: bytes) -> PlanResult | JobResult:
    """Return a result that was stored.

    Raises
    ------
    UnknownDocumentError
        ``plan.unknown_version``: a later version of Paceline stored it.
    """
    text = zstandard.decompress(stored)
    schema = _VERSION.validate_json(text).plan.schema
    if schema != SCHEMA:
        raise UnknownDocumentError(
            f"The plan is {schema}; this version of Paceline reads {SCHEMA}. A later one stored "
            "it.",
            code="plan.unknown_version",
        )
    return _RESULT.validate_json(text)
