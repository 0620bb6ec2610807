"""The times after which senders may repeat a request."""

from __future__ import annotations

from app.errors import BusyError
from app.web.problems import RETRY_AFTER_S, problem_of, retry_after


def test_senders_that_are_put_off_together_do_not_come_back_together() -> None:
    draws = iter([number / 100 for number in range(100)])
    told = [int(retry_after(60.0, lambda: next(draws))) for _ in range(100)]
    assert min(told) == 60
    assert max(told) <= 120
    assert len(set(told)) > 50


def test_retry_after_is_never_before_the_time() -> None:
    told = {int(problem_of(BusyError("later")).headers["retry-after"]) for _ in range(200)}
    assert min(told) >= RETRY_AFTER_S
    assert len(told) > 1


def test_a_longer_queue_puts_off_for_longer() -> None:
    short, long = (
        int(problem_of(BusyError("later", retry_after_s=least_s)).headers["retry-after"])
        for least_s in (5.0, 40.0)
    )
    assert short <= 10
    assert long >= 40
