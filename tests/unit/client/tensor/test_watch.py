from __future__ import annotations

from dataclasses import dataclass

import pytest

from paceline_client.tensor.watch import CpuWatch, CudaWatch, Pace, StepTime


class Clock:
    """A clock in nanoseconds that tests advance."""

    def __init__(self) -> None:
        self.now_ns = 5_000

    def __call__(self) -> int:
        return self.now_ns


def test_a_steps_time_leaves_out_what_it_waited() -> None:
    clock = Clock()
    watch = CpuWatch(clock=clock)
    clock.now_ns += 100
    with watch.matmul(1):
        clock.now_ns += 2_000
    with watch.waiting():
        clock.now_ns += 50_000
    with watch.matmul(1):
        clock.now_ns += 3_000
    watch.end_step(7)
    clock.now_ns += 10
    watch.end_step(8)
    assert watch.finished() == [StepTime(7, 5.1e-6, 5e-6), StepTime(8, 1e-8, 0.0)]
    assert watch.finished() == []


def test_a_wait_within_another_counts_once() -> None:
    clock = Clock()
    watch = CpuWatch(clock=clock)
    with watch.waiting():
        clock.now_ns += 1_000
        with watch.waiting():
            clock.now_ns += 5_000
    clock.now_ns += 300
    watch.end_step(0)
    assert watch.finished() == [StepTime(0, 3e-7, 0.0)]

    device = Device()
    events = CudaWatch(device.new_event)
    device.now_ms += 1.0
    with events.waiting():
        with events.waiting():
            device.now_ms += 7.0
        device.now_ms += 2.0
    events.end_step(0)
    device.passed_ms = device.now_ms
    assert events.finished() == [StepTime(0, 0.001, 0.0)]


def test_a_paced_product_takes_its_operations_times_the_slowdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    slept: list[float] = []
    monkeypatch.setattr("paceline_client.tensor.watch.time.sleep", slept.append)
    monkeypatch.setattr(
        "paceline_client.tensor.watch.time.perf_counter", lambda: clock.now_ns / 1e9
    )
    watch = CpuWatch(Pace(s_per_flop=1e-6, slowdown=4.0), clock)
    with watch.matmul(1_000):
        clock.now_ns += 1_000_000
    with watch.matmul(10):
        clock.now_ns += 1_000_000
    clock.now_ns += 300_000
    watch.end_step(0)
    # The second product took longer than planned, so it did not sleep.
    assert slept == [pytest.approx(0.003)]
    (step,) = watch.finished()
    assert step.matmul_s == pytest.approx(0.005)
    assert step.time_s == pytest.approx(0.0053)


def test_a_sleep_that_is_too_long_shortens_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    slept: list[float] = []

    def sleep_too_long(seconds: float) -> None:
        slept.append(seconds)
        clock.now_ns += round((seconds + 0.0004) * 1e9)

    monkeypatch.setattr("paceline_client.tensor.watch.time.sleep", sleep_too_long)
    monkeypatch.setattr(
        "paceline_client.tensor.watch.time.perf_counter", lambda: clock.now_ns / 1e9
    )
    watch = CpuWatch(Pace(s_per_flop=1e-6), clock)
    for _ in range(3):
        with watch.matmul(1_000):
            pass
    assert slept == [pytest.approx(s) for s in (0.001, 0.0006, 0.0006)]
    # Shorter than the excess of the last sleep, of which the rest is subtracted later.
    with watch.matmul(100):
        pass
    with watch.matmul(1_000):
        pass
    assert slept[3:] == [pytest.approx(0.0007)]


@dataclass
class Device:
    """A stream that has passed all events before `passed_ms`."""

    now_ms: float = 0.0
    passed_ms: float = 0.0
    made: int = 0
    queries: int = 0

    def new_event(self) -> Event:
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self._device = device
        self.at_ms: float | None = None

    def record(self) -> None:
        self.at_ms = self._device.now_ms

    def query(self) -> bool:
        self._device.queries += 1
        assert self.at_ms is not None
        return self.at_ms <= self._device.passed_ms

    def elapsed_time(self, end_event: Event) -> float:
        # A real event raises if the device has not passed it, so that reading it early would fail.
        assert self.at_ms is not None
        assert end_event.at_ms is not None
        assert max(self.at_ms, end_event.at_ms) <= self._device.passed_ms
        return end_event.at_ms - self.at_ms


def step_of(watch: CudaWatch, device: Device, step: int, product_ms: float) -> None:
    device.now_ms += 1.0
    with watch.matmul(1):
        device.now_ms += product_ms
    with watch.waiting():
        device.now_ms += 40.0
    watch.end_step(step)


def test_events_are_read_when_the_device_has_passed_them_and_not_before() -> None:
    device = Device()
    watch = CudaWatch(device.new_event)
    step_of(watch, device, 3, 6.0)
    step_of(watch, device, 4, 8.0)
    assert watch.finished() == []
    device.passed_ms = 50.0
    assert watch.finished() == [StepTime(3, 0.007, 0.006)]
    device.passed_ms = 100.0
    assert watch.finished() == [StepTime(4, 0.009, 0.008)]


def test_events_are_taken_from_a_pool() -> None:
    device = Device()
    watch = CudaWatch(device.new_event)
    for step in range(50):
        step_of(watch, device, step, 2.0)
        device.passed_ms = device.now_ms
        assert len(watch.finished()) == 1
    assert device.made <= 12


def test_a_device_that_lags_far_behind_costs_old_steps_not_memory() -> None:
    device = Device()
    watch = CudaWatch(device.new_event, most_steps=4)
    for step in range(50):
        step_of(watch, device, step, 2.0)
    device.passed_ms = device.now_ms
    assert [one.step for one in watch.finished()] == [46, 47, 48, 49]
    assert device.made <= 40
