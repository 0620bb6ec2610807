"""The parts that the time of a session is split into."""

from __future__ import annotations

from enum import StrEnum


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
