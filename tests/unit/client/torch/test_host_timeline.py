from __future__ import annotations

import threading
import time

import pytest

from tests.support.extras import of_real_jobs

of_real_jobs("torch")

from paceline_client.torch import host_timeline  # noqa: E402
from paceline_client.torch.host_timeline import HostTimeline  # noqa: E402
from paceline_client.torch.tap import Tap  # noqa: E402
from tests.unit.client.torch.conftest import Seen  # noqa: E402


class Work:
    """Completes when a test says so; like gloo's, it can be waited for once."""

    def __init__(self, error: Exception | None = None) -> None:
        self.done = threading.Event()
        self.error = error
        self.waits = 0

    def wait(self) -> bool:
        self.waits += 1
        assert self.done.wait(30)
        if self.error is not None:
            raise self.error
        return True


def recording(seen: Seen) -> Tap:
    tap = Tap(HostTimeline())
    tap.on, tap.sink, tap.step = True, seen, 5
    return tap


def test_a_span_is_recorded_by_the_hosts_clock(seen: Seen) -> None:
    tap = recording(seen)
    before = time.time_ns()
    with tap.span("optimizer", mb=2, mc=1):
        pass
    ((op, start_ns, duration_ns, step, mb, mc),) = seen.operations
    assert (op, step, mb, mc) == ("optimizer", 5, 2, 1)
    assert abs(start_ns - before) < 10**9
    assert duration_ns >= 0


def test_nothing_is_recorded_while_off_or_while_hooks_warm_up_or_of_what_raises(
    seen: Seen,
) -> None:
    tap = recording(seen)
    tap.on = False
    with tap.span("gc"):
        pass
    tap.on, tap.sink = True, None
    with tap.span("gc"):
        pass
    tap.sink = seen
    with pytest.raises(KeyError), tap.computing("forward-compute", 0, None):
        raise KeyError
    assert seen.operations == []
    assert tap.depth == 0


def test_work_ends_where_it_completes_and_in_the_step_that_posted_it(seen: Seen) -> None:
    tap = recording(seen)
    work = Work()
    watched = tap.watch("forward-recv", work, tap.now(), mb=3)
    assert not watched.is_completed()
    tap.step = 6
    work.done.set()
    assert watched.wait() is True
    assert watched.wait() is True
    assert work.waits == 1
    assert [(o[0], o[3], o[4]) for o in seen.operations] == [("forward-recv", 5, 3)]
    assert watched.done is work.done, "everything else is the work's own"


def test_an_error_of_the_work_is_the_jobs_and_no_operation(seen: Seen) -> None:
    tap = recording(seen)
    work = Work(ConnectionError("peer is gone"))
    watched = tap.watch("forward-recv", work, tap.now())
    work.done.set()
    with pytest.raises(ConnectionError, match="peer is gone"):
        watched.wait()
    assert seen.operations == []


def test_over_the_limit_work_ends_where_the_job_waits_for_it(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_timeline, "_MOST_WAITERS", 1)
    tap = recording(seen)
    first, second = Work(), Work()
    watched = [tap.watch("forward-recv", work, tap.now()) for work in (first, second)]
    second.done.set()
    assert watched[1].wait() is True
    first.done.set()
    assert watched[0].wait() is True
    tap.timeline.settle(30)
    assert len(seen.operations) == 2


def test_a_host_clock_that_is_set_moves_nothing_and_is_measured(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    tap = recording(seen)
    tap.timeline.begin()
    real = time.time_ns
    with tap.span("gc"):
        monkeypatch.setattr(time, "time_ns", lambda: real() - 3600 * 10**9)
    assert abs(seen.operations[0][1] - real()) < 60 * 10**9
    assert tap.timeline.measured()["clock_set_ns"] == pytest.approx(-3600e9, abs=1e9)
