"""The parts that the time of a session is split into."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Part(StrEnum):
    """What a worker's time passes with."""

    COMPUTING = "computing"
    OWN_SLOWNESS = "own_slowness"
    SLOW_TOGETHER = "slow_together"
    WAITING = "waiting"
    BUBBLE = "bubble"
    COMMUNICATION = "communication"
    COMMUNICATION_ABOVE = "communication_above"
    LAUNCH_DELAYS = "launch_delays"
    BETWEEN_STEPS = "between_steps"
    BETWEEN_STEPS_ABOVE = "between_steps_above"
    MISSING = "missing"

    @property
    def words(self) -> str:
        """Return what people call it."""
        return _WORDS[self]

    @property
    def lost(self) -> bool:
        """Return whether a job without stragglers and standstills would not have it."""
        return self in _LOST


_WORDS: Final = {
    Part.COMPUTING: "computing",
    Part.OWN_SLOWNESS: "a worker's own slowness",
    Part.SLOW_TOGETHER: "slowness of all together",
    Part.WAITING: "waiting for stragglers",
    Part.BUBBLE: "pipeline bubble",
    Part.COMMUNICATION: "communication",
    Part.COMMUNICATION_ABOVE: "slow communication",
    Part.LAUNCH_DELAYS: "late launches",
    Part.BETWEEN_STEPS: "usual time between steps",
    Part.BETWEEN_STEPS_ABOVE: "standstills between steps",
    Part.MISSING: "steps left out",
}
_LOST: Final = frozenset(
    {
        Part.OWN_SLOWNESS,
        Part.SLOW_TOGETHER,
        Part.WAITING,
        Part.COMMUNICATION_ABOVE,
        Part.LAUNCH_DELAYS,
        Part.BETWEEN_STEPS_ABOVE,
    }
)
