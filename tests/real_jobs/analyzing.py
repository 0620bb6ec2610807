"""What the product says of a recording: the one place here that calls it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app.analysis.report import analyze
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.errors import PacelineError
from tests.real_jobs.jobs import Place


@dataclass(frozen=True, slots=True)
class NamedCause:
    """A cause as reported.

    Parameters
    ----------
    runner_up : str or None
        What else it may be.
    """

    name: str
    confidence: float
    workers: tuple[Place, ...]
    stage: int | None
    runner_up: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a report says, as far as a truth can be held against it.

    Parameters
    ----------
    refused : str or None
        Why there is no report at all; the other fields say nothing then.
    """

    refused: str | None = None
    verdict: bool = False
    discrepancy: float = 1.0
    headline: float = 1.0
    causes: tuple[NamedCause, ...] = ()


def answer(trace: bytes) -> Answer:
    """Analyze a trace in NDJSON."""
    with TemporaryDirectory(prefix="paceline-real-job-") as directory:
        path = Path(directory) / "trace.ndjson"
        path.write_bytes(trace)
        try:
            report = analyze(decode(path, None, limits=Limits()).trace).document
        except PacelineError as error:
            return Answer(refused=str(error))
    return read(report)


def read(report: dict[str, Any]) -> Answer:
    """Take from a report what is compared."""
    return Answer(
        verdict=report["fidelity"]["verdict"],
        discrepancy=report["fidelity"]["discrepancy"],
        headline=_headline(report),
        causes=tuple(_cause(cause) for cause in report["causes"] or ()),
    )


def _headline(report: dict[str, Any]) -> float:
    """Return the slowdown that people are shown first."""
    for part in (report.get("headline"), report["diagnosis"]):
        if part is not None and part["slowdown"] is not None:
            return float(part["slowdown"])
    return float(report["slowdown"])


def _cause(cause: dict[str, Any]) -> NamedCause:
    where = cause["where"]
    return NamedCause(
        cause["cause"],
        cause["confidence"] if cause["confidence"] is not None else 0.0,
        tuple(Place(dp, pp) for dp, pp in where.get("workers", ())),
        where.get("stage"),
        cause["runner_up"],
    )
