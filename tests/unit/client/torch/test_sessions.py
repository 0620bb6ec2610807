from __future__ import annotations

import pytest

from tests.support.extras import of_real_jobs

of_real_jobs("torch")

from paceline_client.torch.sessions import Sampling, Window, seconds  # noqa: E402


@pytest.mark.parametrize(
    ("every", "expected"),
    [("30min", 1800.0), ("2h", 7200.0), ("1.5 H", 5400.0), ("90s", 90.0), (45, 45.0), (None, None)],
)
def test_a_time_is_read_as_people_write_it(every: str | float | None, expected: object) -> None:
    assert seconds(every) == expected


@pytest.mark.parametrize("every", ["", "30", "min", "-1h", "2 weeks", 0, -1, float("nan")])
def test_an_invalid_time_is_refused(every: str | float) -> None:
    with pytest.raises(ValueError, match="every must be"):
        seconds(every)


def windows(sampling: Sampling, steps: int, step_time_s: float) -> list[tuple[int, Window]]:
    decided = ((step, sampling.decide(step, step * step_time_s)) for step in range(steps))
    return [(step, window) for step, window in decided if window is not None]


def test_a_window_comes_once_the_step_time_is_known_and_then_every_so_often() -> None:
    found = windows(Sampling(100.0, steps=50, warmup=2), 250, step_time_s=1.0)
    assert [step for step, _ in found] == [3, 103, 203]
    # Two steps until all ranks have got the message, and two of warm-up.
    assert [window.start for _, window in found] == [7, 107, 207]
    assert {window.steps for _, window in found} == {50}


def test_a_fast_job_announces_its_window_more_steps_ahead() -> None:
    ((step, window),) = windows(Sampling(1e6, steps=50, warmup=0), 200, step_time_s=0.01)
    assert window.start - step == pytest.approx(100, abs=1)


@pytest.mark.parametrize(
    ("step_time_s", "steps"), [(1.0, 50), (3.6, 50), (4.0, 45), (29.0, 6), (300.0, 5)]
)
def test_slow_steps_make_a_window_of_fewer(step_time_s: float, steps: int) -> None:
    sampling = Sampling(1e6, steps=50, warmup=2, longest_s=180.0)
    ((_, window),) = windows(sampling, 20, step_time_s)
    assert window.steps == steps


def test_windows_of_few_steps_and_requested_windows_keep_their_lengths() -> None:
    sampling = Sampling(1e6, steps=3, warmup=0, longest_s=180.0)
    ((_, window),) = windows(sampling, 20, 100.0)
    assert window.steps == 3
    sampling.request(40)
    asked = sampling.decide(20, 2000.0)
    assert asked is not None
    assert asked.steps == 40


def test_on_request_only_a_window_comes_when_asked_for() -> None:
    sampling = Sampling(None, steps=50, warmup=1)
    assert windows(sampling, 100, 1.0) == []
    sampling.request(7)
    assert sampling.decide(100, 100.0) == Window(103, 7)
    assert sampling.decide(101, 101.0) is None
    sampling.request(7, every_rank=True)
    assert sampling.decide(102, 102.0) == Window(105, 7, every_rank=True)


def test_a_window_is_numbered_by_its_first_step_and_survives_its_text_form() -> None:
    window = Window(14, 50)
    assert (window.session, window.end) == (15, 64)
    for sent in (window, Window(14, 50, every_rank=True)):
        assert Window.read(sent.text()) == sent


@pytest.mark.parametrize(("steps", "warmup"), [(0, 0), (5, -1)])
def test_a_window_without_steps_is_refused(steps: int, warmup: int) -> None:
    with pytest.raises(ValueError, match="steps must be at least 1"):
        Sampling(None, steps, warmup)
