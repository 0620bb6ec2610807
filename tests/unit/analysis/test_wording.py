from __future__ import annotations

import re

import pytest

from app.analysis.report.build import analyze
from app.analysis.synthesis.scenarios import SCENARIOS
from app.analysis.wording import gpu_time, hours, percent, sure
from app.web import format as pages


def test_reports_write_shares_as_pages_do() -> None:
    for share in (0.0, 0.005, 0.199, 0.5, 1.0, 1.234):
        for digits in (0, 1):
            assert percent(share, digits) == pages.percent(share, digits)
    assert percent(0.199) == "19.9\N{NO-BREAK SPACE}%"


@pytest.mark.parametrize(
    ("confidence", "text"),
    [(1.0, "over 99 %"), (0.991, "over 99 %"), (0.99, "99 %"), (0.94, "94 %")],
)
def test_nothing_is_certain(confidence: float, text: str) -> None:
    assert sure(confidence).replace("\N{NO-BREAK SPACE}", " ") == text


def test_the_sentences_of_a_report_that_is_not_believed_write_shares_that_way() -> None:
    report = analyze(SCENARIOS["data-loading"].synthesize(0).trace).report
    assert re.search(r"\d\N{NO-BREAK SPACE}%", report.fidelity.reason or "")
    for sentence in (report.verdict.sentence, report.fidelity.reason or ""):
        assert not re.search(r"\d ?%", sentence)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.0234, "0.023"), (8.74, "8.7"), (17.96, "18.0"), (3341.2, "3,341")],
)
def test_gpu_hours_keep_three_digits(value: float, text: str) -> None:
    assert hours(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 GPU-hours"),
        (3.25, "3.2 GPU-hours"),
        (0.05, "3.0 GPU-minutes"),
        (0.0007, "2.5 GPU-seconds"),
    ],
)
def test_few_gpu_hours_are_minutes_or_seconds(value: float, text: str) -> None:
    assert gpu_time(value) == text
