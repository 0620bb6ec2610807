"""Python's garbage collector, by `gc.callbacks`."""

from __future__ import annotations

import gc
from typing import Any, Final

from paceline_client.torch.tap import GC
from paceline_client.torch.targets.kind import Job, Level, Target, Undo

# Collections of the youngest generation take microseconds and occur hundreds of times per step.
_SHORTEST_NS: Final = 100_000


def _install(job: Job, _level: Level) -> Undo:
    tap = job.tap
    on_host = tap.timeline.name == "host"

    def record() -> Undo:
        started: list[Any] = []

        def collected(phase: str, info: dict[str, int]) -> None:
            if phase == "start":
                started.append(tap.now())
                return
            start = started.pop() if started else None
            if start is None or not tap.on:
                return
            end = tap.now()
            short = end - start < _SHORTEST_NS if on_host else info.get("generation", 0) == 0
            if not short:
                tap.add_aside(GC, start, end)

        gc.callbacks.append(collected)
        return lambda: gc.callbacks.remove(collected)

    return job.while_recording(record)


GARBAGE: Final = Target("gc", "Python's garbage collector", wanted=lambda _: True, install=_install)
