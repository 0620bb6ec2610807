"""Timelines of host and device, with events and streams of a device that tests advance."""

from __future__ import annotations

import contextlib
import math
import struct
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.support.extras import of_real_jobs

of_real_jobs("torch")

from paceline_client.torch import timelines  # noqa: E402
from paceline_client.torch.instrumentation.base import Job  # noqa: E402
from paceline_client.torch.instrumentation.data_parallel import FSDP2  # noqa: E402
from paceline_client.torch.layout import Layout  # noqa: E402
from paceline_client.torch.tap import Tap  # noqa: E402
from paceline_client.torch.timelines import DeviceTimeline, HostTimeline  # noqa: E402
from tests.unit.client.torch.conftest import Seen  # noqa: E402


class Stream:
    def __init__(self) -> None:
        self.now_ms = 0.0


class Cuda:
    """The parts of `torch.cuda` that the timeline uses; each stream has its own time in ms."""

    def __init__(self) -> None:
        self.events = 0
        self.main = Stream()
        self.current = self.main
        cuda = self

        class Event:
            def __init__(self, *, enable_timing: bool, blocking: bool) -> None:
                assert enable_timing
                assert blocking, "or a processor waits busily"
                cuda.events += 1
                self.at_ms = -1.0

            def record(self, stream: Stream | None = None) -> None:
                self.at_ms = (stream or cuda.current).now_ms

            def synchronize(self) -> None:
                assert self.at_ms >= 0, "recorded before it is read"

            def elapsed_time(self, other: Event) -> float:
                # In single precision, like the driver's.
                return float(struct.unpack("f", struct.pack("f", other.at_ms - self.at_ms))[0])

        self.Event = Event
        self.Stream = Stream

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


class Work:
    """A transfer: the stream that waits for it waits until a given time."""

    def __init__(self, cuda: Cuda, ends_ms: float) -> None:
        self.cuda, self.ends_ms = cuda, ends_ms

    def wait(self) -> None:
        self.cuda.current.now_ms = max(self.cuda.current.now_ms, self.ends_ms)


def test_operations_are_read_after_their_step_from_events_of_the_stream(seen: Seen) -> None:
    cuda = Cuda()
    tap = Tap(DeviceTimeline(cuda))
    tap.timeline.begin()
    tap.on, tap.sink = True, seen
    before_ns = time.time_ns()
    for step in range(2):
        tap.step = step
        with tap.span("forward-compute", mb=0):
            cuda.main.now_ms += 10
        work = tap.watch("forward-send", Work(cuda, cuda.main.now_ms + 4), tap.now(), mb=0)
        assert isinstance(work, Work), "the job waits for the work itself"
        with tap.span("backward-compute", mb=0):
            cuda.main.now_ms += 20
        tap.timeline.end_step()
    tap.timeline.settle(30)

    first_ns = seen.operations[0][1]
    assert first_ns - before_ns < 10**9
    assert [(o[0], o[1] - first_ns, o[2], o[3]) for o in seen.operations] == [
        ("forward-compute", 0, 10_000_000, 0),
        ("forward-send", 10_000_000, 4_000_000, 0),
        ("backward-compute", 10_000_000, 20_000_000, 0),
        ("forward-compute", 30_000_000, 10_000_000, 1),
        ("forward-send", 40_000_000, 4_000_000, 1),
        ("backward-compute", 40_000_000, 20_000_000, 1),
    ]


def test_what_follows_an_operation_does_not_begin_before_its_end(seen: Seen) -> None:
    cuda = Cuda()
    tap = Tap(DeviceTimeline(cuda))
    tap.timeline.begin()
    tap.on, tap.sink = True, seen
    for tap.step in range(200):
        for op in ("forward-compute", "backward-compute", "optimizer"):
            with tap.span(op):
                cuda.main.now_ms += 1.0 + 99.0 * math.sin(0.7 * tap.step + len(op)) ** 2
        tap.timeline.end_step()
    tap.timeline.settle(30)

    assert len(seen.operations) == 600
    for step in range(200):
        mine = [one for one in seen.operations if one[3] == step]
        assert all(one[1] + one[2] <= later[1] for one, later in pairwise(mine))


def test_events_are_used_again(seen: Seen) -> None:
    cuda = Cuda()
    tap = Tap(DeviceTimeline(cuda))
    tap.timeline.begin()
    tap.on, tap.sink = True, seen
    for step in range(50):
        tap.step = step
        with tap.span("gc"):
            cuda.main.now_ms += 1
        tap.timeline.end_step()
        tap.timeline.settle(30)
    assert len(seen.operations) == 50
    assert cuda.events < 10


def test_the_drift_between_device_and_host_is_measured(seen: Seen) -> None:
    cuda = Cuda()
    timeline = DeviceTimeline(cuda)
    timeline.begin()
    cuda.main.now_ms += 3_600_000
    timeline.end_step()
    timeline.settle(30)
    del seen
    # The device's clock advances by an hour, the host's by a moment.
    assert timeline.measured()["clock_drift_ns"] == pytest.approx(-3600e9, rel=0.01)


def test_the_thread_reads_the_remaining_events_and_ends_with_the_interpreter(
    seen: Seen,
) -> None:
    cuda = Cuda()
    timeline = DeviceTimeline(cuda)
    tap = Tap(timeline)
    timeline.begin()
    tap.on, tap.sink = True, seen
    with tap.span("gc"):
        cuda.main.now_ms += 1
    timeline.end_step()
    timeline._end()

    assert timeline._thread is not None
    assert not timeline._thread.is_alive()
    assert seen.names() == ["gc"]


def test_a_backward_that_waits_for_earlier_reductions_of_fsdp_is_seen_to_wait(seen: Seen) -> None:
    cuda = Cuda()
    tap = Tap(DeviceTimeline(cuda))
    tap.timeline.begin()
    tap.on, tap.sink = True, seen
    (hook,) = (hook for hook in FSDP2.hooks if hook.where.endswith(".post_backward"))

    class Group:
        reduce_grads = True

    def waits(_group: Group) -> None:
        # Waits for the event of the reduction two before.
        Work(cuda, 27.0).wait()

    post_backward = hook.wrap(Job(tap, Layout(dp=2)), waits)
    with tap.computing("backward-compute", 0, None):
        cuda.main.now_ms += 10
        post_backward(Group())
        cuda.main.now_ms += 5
        post_backward(Group())
    tap.end_step()
    tap.timeline.settle(5.0)

    took: dict[str, list[int]] = {}
    for op, _, duration_ns, *_ in seen.operations:
        took.setdefault(op, []).append(round(duration_ns / 1e6))
    assert took == {"grads-reduce-scatter": [17, 0], "backward-compute": [32]}


class HostWork:
    """A work that completes when a test lets it; like gloo's, it can be waited for once."""

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
    work = HostWork()
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
    work = HostWork(ConnectionError("peer is gone"))
    watched = tap.watch("forward-recv", work, tap.now())
    work.done.set()
    with pytest.raises(ConnectionError, match="peer is gone"):
        watched.wait()
    assert seen.operations == []


def test_over_the_limit_work_ends_where_the_job_waits_for_it(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timelines, "_MOST_WAITERS", 1)
    tap = recording(seen)
    first, second = HostWork(), HostWork()
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
