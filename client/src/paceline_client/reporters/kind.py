"""What a reporter is, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

PREFIX: Final = "paceline/"


@dataclass(frozen=True)
class JobStanding:
    """How a job stands, as Paceline says; None where it does not know."""

    session: int  # of an attached job the number of its first step, and 1
    slowdown: float | None  # step time / step time without stragglers; 1 is none
    gpu_hours_lost: float | None  # in the recorded steps of that session
    gpu_hours_lost_per_hour: float | None  # of running like that
    firing: int  # incidents of the job
    incident: str  # state of the most pressing open one; "none" without
    sentence: str  # the verdict in words

    def numbers(self) -> dict[str, float]:
        """Return what is known as metrics, by their names in a run."""
        found = {
            "slowdown": self.slowdown,
            "gpu_hours_lost": self.gpu_hours_lost,
            "gpu_hours_lost_per_hour": self.gpu_hours_lost_per_hour,
            "incidents_firing": self.firing,
        }
        return {PREFIX + name: float(value) for name, value in found.items() if value is not None}


class Reporter(Protocol):
    """Writes into one run; called on one thread, and may raise."""

    def write(self, standing: JobStanding) -> None:
        """Write how the job stands."""

    def close(self) -> None:
        """Let go of what it opened itself."""


# Takes the run to write into, as its library calls it; None for the one that is active.
MakeReporter = Callable[[Any], Reporter]
