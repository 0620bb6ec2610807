"""Comparison of the answer to a recording with the job's fault."""

from __future__ import annotations

from typing import Final

from app.analysis.report.build import analyze
from app.cli.convert import read_recordings
from app.errors import PacelineError
from tests.real_jobs.analyzing import Answer, answer_of
from tests.real_jobs.unlabelled.jobs import SLOW_RANK, Trouble
from tests.real_jobs.unlabelled.launching import Recording

# Largest headline of a healthy job.
HEALTHY_AT_MOST: Final = 1.03
WITHIN: Final = 0.05
# A larger spread of healthy steps shows that the machine was busy.
NOISY: Final = 0.06


def answer_to(recording: Recording) -> Answer:
    """Return the product's answer to the files of a recording."""
    try:
        trace = read_recordings(list(recording.files), None, None).trace
        return answer_of(analyze(trace).report)
    except PacelineError as error:
        return Answer(refused=str(error))


def faults_of(recording: Recording) -> list[str]:
    """Return the faults of the answer to a recording; empty if it is right."""
    told = answer_to(recording)
    if told.refused is not None:
        return [f"refused: {told.refused}"]
    trouble = recording.window.trouble
    # A job with late launches may have its verdict by the replay with recorded launches.
    answered = told.verdict or (told.by_launches and trouble is Trouble.SLOW_LOADER)
    wrong = [] if answered else [f"no verdict, {told.discrepancy:.1%} off"]
    first = told.causes[0] if told.causes else None
    if trouble is Trouble.NONE:
        if told.headline > HEALTHY_AT_MOST:
            wrong.append(f"healthy: {told.headline:.3f}, {first}")
        return wrong
    if abs(told.headline / recording.slowdown - 1) > WITHIN:
        wrong.append(f"headline {told.headline:.3f} for {recording.slowdown:.3f}")
    place = recording.kind.place(SLOW_RANK)
    if first is None:
        wrong.append("no cause")
    elif first.name not in trouble.causes or (first.workers and place not in first.workers):
        wrong.append(f"{first}")
    return wrong
