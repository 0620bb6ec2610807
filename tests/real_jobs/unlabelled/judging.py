"""Whether what is said of a recording is what was done to the job."""

from __future__ import annotations

from typing import Final

from app.analysis.report.build import analyze
from app.cli.convert import read_recordings
from app.errors import PacelineError
from tests.real_jobs.analyzing import Answer, answer_of
from tests.real_jobs.unlabelled.jobs import SLOW_RANK, Trouble
from tests.real_jobs.unlabelled.launching import Recording

# A healthy job is told no more than this.
HEALTHY_AT_MOST: Final = 1.03
WITHIN: Final = 0.05
# Healthy steps that differ by more say that the machine was busy.
NOISY: Final = 0.06


def answer_to(recording: Recording) -> Answer:
    """Return what the product says of the files of a recording."""
    try:
        trace = read_recordings(list(recording.files), None, None).trace
        return answer_of(analyze(trace).report)
    except PacelineError as error:
        return Answer(refused=str(error))


def faults_of(recording: Recording) -> list[str]:
    """Return what is wrong with what is said of a recording; nothing if it is right."""
    told = answer_to(recording)
    if told.refused is not None:
        return [f"refused: {told.refused}"]
    trouble = recording.window.trouble
    # What launches late makes of a job is told with the causes of that, whose replay is near.
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
