"""The measured gain of a fix, and the accuracy of predictions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.report.document import JobSizes
from app.analysis.report.fix_outcomes import Run, calibration, outcome, prediction_error, work_of

SIZES = JobSizes(dp=4, pp=2, tp=1, cp=1, vpp=1, world=8)
BEFORE = Run(2.0, SIZES, {"global_batch_size": 256})


def test_the_gain_is_a_share_of_the_step_before() -> None:
    brought = outcome(BEFORE, replace(BEFORE, step_time_s=1.5))
    assert (brought.step_time_s, brought.gain, brought.unlike) == (1.5, 0.25, None)


def test_a_step_that_got_slower_is_a_negative_gain() -> None:
    assert outcome(BEFORE, replace(BEFORE, step_time_s=2.5)).gain == pytest.approx(-0.25)


def test_sessions_of_other_sizes_are_not_compared() -> None:
    after = Run(1.0, replace(SIZES, dp=8, world=16), {})
    assert outcome(BEFORE, after).unlike == "ran as DP 8 × PP 2, not as DP 4 × PP 2"


def test_sessions_with_other_work_a_step_are_not_compared() -> None:
    after = Run(1.0, SIZES, {"global_batch_size": 128})
    assert outcome(BEFORE, after).unlike == "global_batch_size was 256, and is 128"


def test_work_that_only_one_session_names_is_no_difference() -> None:
    assert outcome(BEFORE, Run(1.0, SIZES, {})).unlike is None


def test_it_is_unknown_which_of_several_fixes_brought_what() -> None:
    assert outcome(BEFORE, BEFORE, applied=2).unlike == "2 fixes were applied at once"


def test_metadata_name_the_work_of_a_step() -> None:
    assert work_of({"seq_length": 4096, "model": "x"}) == {"seq_length": 4096}


def test_an_error_is_of_the_predicted_step_time() -> None:
    assert prediction_error(0.2, 0.12) == pytest.approx(0.1)
    assert prediction_error(0.2, 0.28) == pytest.approx(-0.1)


def test_a_calibration_counts_predictions_that_were_met() -> None:
    found = calibration([0.01, -0.04, 0.2])
    assert found is not None
    assert (found.measured, found.met, found.median_error) == (3, 2, 0.04)
    assert calibration([]) is None
