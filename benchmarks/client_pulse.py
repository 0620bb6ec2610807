"""Cost of the pulse for a training, against no client and recording (part of `make bench-client`).

Empty steps are timed by the processor time of this thread, in turns without a client, with the
pulse and with a session; the smallest of several rounds counts, so that other processes of the
machine do not. Steps of a small model show that losses stay equal to the last bit.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

import paceline_client.torch as paceline
from paceline_client.torch.tap import FORWARD

_ROUNDS: Final = 15
_STEPS: Final = 100
_OPERATIONS: Final = 64
_STEP_NS: Final = 200_000_000
_TRAINED: Final = 60
# Promised limits, which are printed next to the measured values.
MOST_US_A_STEP: Final = 20.0
MOST_US: Final = 2.0
MOST_OF_A_STEP: Final = 0.001
MOST_BYTES: Final = 100.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a kind of attachment for this thread."""

    step_us: float
    operation_us: float

    def of_a_step(self) -> float:
        """Return the cost as a share of a step of 200 ms with 64 operations."""
        return 1e3 * (self.step_us + _OPERATIONS * self.operation_us) / _STEP_NS


def measure(url: str) -> bool:
    """Print the figures; return whether they are within the promised limits."""
    torch.set_num_threads(1)
    before_mib = _memory_mib()
    costs = _costs(url)
    pulse = costs["pulse"]
    losses, sent_bytes, threads = _trained(url)
    same = len(set(losses.values())) == 1
    for way, cost in costs.items():
        print(
            f"{way:<21} {cost.step_us:.1f} µs a step, {cost.operation_us:.2f} µs an operation, "
            f"{cost.of_a_step():.3%} of 200 ms with {_OPERATIONS}"
        )
    print(
        f"promised of the pulse {MOST_US_A_STEP} µs a step, {MOST_US} µs an operation, "
        f"{MOST_OF_A_STEP:.1%}"
    )
    print(f"a row of the pulse    {sent_bytes:.0f} bytes (at most {MOST_BYTES:.0f})")
    print(f"losses                {'the same to the last bit' if same else 'DIFFERENT'}")
    print(f"threads, memory       {threads} more, {_memory_mib() - before_mib:.0f} MiB")
    return (
        same
        and pulse.step_us <= MOST_US_A_STEP
        and pulse.operation_us <= MOST_US
        and pulse.of_a_step() <= MOST_OF_A_STEP
        and sent_bytes <= MOST_BYTES
    )


def _attach(url: str, way: str, model: torch.nn.Module) -> paceline.Monitor | None:
    if way == "none":
        return None
    monitor = paceline.attach(url, f"bench-{way}", model=model, every=None, pulse=way == "pulse")
    if way == "recording":
        monitor.record(1 << 20, at=1)
    return monitor


def _costs(url: str) -> dict[str, Cost]:
    """Return the cost of each kind of attachment, without that of the loop itself."""
    ways = ("none", "pulse", "recording")
    monitors = {way: _attach(url, way, torch.nn.Linear(1, 1)) for way in ways}
    counts = (0, _OPERATIONS)
    best = dict.fromkeys(((way, count) for way in ways for count in counts), float("inf"))
    for _ in range(_ROUNDS):
        for way, count in best:
            monitor = monitors[way]
            run = _steps_without if monitor is None else _steps_of(monitor)
            began = time.thread_time()
            run(count)
            best[way, count] = min(best[way, count], (time.thread_time() - began) / _STEPS)
        # The threads that send empty their queues between rounds.
        time.sleep(0.05)
    for monitor in monitors.values():
        if monitor is not None:
            monitor.close()
    costs = {}
    for way in ways[1:]:
        step = best[way, 0] - best["none", 0]
        whole = best[way, _OPERATIONS] - best["none", _OPERATIONS]
        costs[way] = Cost(1e6 * step, 1e6 * (whole - step) / _OPERATIONS)
    return costs


def _steps_of(monitor: paceline.Monitor) -> Callable[[int], None]:
    def run(operations: int) -> None:
        for _ in range(_STEPS):
            for mb in range(operations):
                with monitor.span(FORWARD, mb=mb):
                    pass
            monitor.step()

    return run


def _steps_without(operations: int) -> None:
    for _ in range(_STEPS):
        for _ in range(operations):
            pass


def _trained(url: str) -> tuple[dict[str, tuple[str, ...]], float, int]:
    """Return the losses of each kind of attachment, the pulse's bytes a row, and its threads."""
    losses: dict[str, tuple[str, ...]] = {}
    row_bytes, threads = 0.0, 0
    for way in ("none", "pulse", "recording"):
        torch.manual_seed(7)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
        optimizer = torch.optim.Adam(model.parameters())
        before = threading.active_count()
        monitor = _attach(url, way, model)
        results = []
        for _ in range(_TRAINED):
            loss = model(torch.randn(256, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            results.append(loss.item().hex())
            if monitor is not None:
                monitor.step()
        losses[way] = tuple(results)
        if monitor is not None:
            threads = threading.active_count() - before if way == "pulse" else threads
            monitor.close()
            counts = monitor.pulse_counts
            if counts is not None:
                row_bytes = counts.bytes / max(1, counts.sent)
    return losses, row_bytes, threads


def _memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
