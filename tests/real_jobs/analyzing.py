"""The product's verdict on a recording: the only module here that calls the product."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.replay.adaptations.kind import Name
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.errors import PacelineError
from tests.real_jobs.jobs import Place


@dataclass(frozen=True, slots=True)
class NamedCause:
    """A cause in a report.

    Parameters
    ----------
    runner_up : str or None
        The next likely cause.
    """

    name: str
    confidence: float
    workers: tuple[Place, ...]
    stage: int | None
    runner_up: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The parts of a report that can be compared with a truth.

    Parameters
    ----------
    refused : str or None
        Why there is no report at all; the other fields are then empty.
    by_launches : bool
        Whether S is withheld, and the headline is relative to the job without the late launches.
    """

    refused: str | None = None
    verdict: bool = False
    by_launches: bool = False
    discrepancy: float = 1.0
    headline: float = 1.0
    causes: tuple[NamedCause, ...] = ()


def answer(trace: bytes, without: Collection[Name] = ()) -> Answer:
    """Analyze a trace in NDJSON, without some of the adaptations."""
    with TemporaryDirectory(prefix="paceline-real-job-") as directory:
        path = Path(directory) / "trace.ndjson"
        path.write_bytes(trace)
        try:
            report = analyze(decode(path, None, limits=Limits()).trace, without).report
        except PacelineError as error:
            return Answer(refused=str(error))
    return answer_of(report)


def answer_of(report: Report) -> Answer:
    """Return the parts of a report that can be compared with a truth."""
    return Answer(
        verdict=report.fidelity.verdict,
        by_launches=report.headline.kind is HeadlineKind.LAUNCHES,
        discrepancy=report.fidelity.discrepancy,
        headline=report.headline.slowdown,
        causes=tuple(
            NamedCause(
                cause.cause,
                cause.confidence or 0.0,
                tuple(Place(dp, pp) for dp, pp in cause.where.workers),
                cause.where.stage,
                cause.runner_up,
            )
            for cause in report.causes
        ),
    )
