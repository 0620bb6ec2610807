"""Applied fixes on pages."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import replace

import pytest

from app.analysis.report.fix_outcomes import Calibration
from app.fixes.applied import Realized
from app.fixes.pages import applied_how, calibration_text, outcome, predicted, realized
from app.platform.database.states import FixSource

FIX = Realized(
    job="llm",
    session=uuid.UUID(int=1),
    number=3,
    action="replace_worker",
    title="Replace worker (0, 0)",
    applied_at=dt.datetime(2026, 11, 22, tzinfo=dt.UTC),
    applied_by="ada",
    source=FixSource.PERSON,
    step_time_s=2.0,
    predicted_gain=0.25,
    at_most=False,
    measured_by=uuid.UUID(int=2),
    measured_number=4,
    realized_step_time_s=1.52,
    realized_gain=0.24,
    unlike=None,
)


@pytest.mark.parametrize(
    ("fix", "text"),
    [
        (FIX, "as predicted, off by 1.3 %"),
        (replace(FIX, realized_gain=0.1), "20.0 % slower than predicted"),
        (replace(FIX, realized_gain=0.4), "20.0 % faster than predicted"),
        (
            replace(FIX, unlike="ran as DP 8, not as DP 4"),
            "not comparable: ran as DP 8, not as DP 4",
        ),
        (replace(FIX, at_most=True), "the prediction was an upper bound"),
        (
            replace(FIX, measured_by=None, realized_step_time_s=None, realized_gain=None),
            "the next session measures it",
        ),
    ],
)
def test_an_outcome_says_how_the_prediction_turned_out(fix: Realized, text: str) -> None:
    assert outcome(fix).replace("\N{NO-BREAK SPACE}", " ") == text


def test_predicted_and_realized_step_times_are_side_by_side() -> None:
    shown = [text.replace("\N{NO-BREAK SPACE}", " ") for text in (predicted(FIX), realized(FIX))]
    assert shown == ["1.50 s, −25.0 %", "1.52 s, −24.0 %"]


def test_a_fix_seen_in_the_metadata_says_so() -> None:
    fix = replace(FIX, applied_by=None, source=FixSource.METADATA)
    assert applied_how(fix) == "seen in the metadata"


def test_a_calibration_is_a_sentence_and_nothing_where_there_is_none() -> None:
    text = calibration_text(Calibration(12, 11, 0.012)).replace("\N{NO-BREAK SPACE}", " ")
    assert text == "Of 12 measured predictions, 11 held within 5 %; median error 1.2 %"
    assert not calibration_text(None)
