"""When to record: periodic and requested windows of steps."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Final

_UNITS_S: Final = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_EVERY: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")

# All ranks must know a window before it begins, although their steps drift apart.
_LEAD_S: Final = 1.0
_LEAD_STEPS: Final = 2
# The first steps compile and connect; the step time is known afterwards.
_FIRST_STEPS: Final = 3
# Fewer steps have a verdict without any interval: for those who ask for them.
_LEAST_STEPS: Final = 5


@dataclass(frozen=True)
class Window:
    """Steps to record."""

    start: int
    steps: int

    @property
    def end(self) -> int:
        """The step after the last."""
        return self.start + self.steps

    @property
    def session(self) -> int:
        """Number of the session: its first step, counted from 1."""
        return self.start + 1

    def text(self) -> str:
        """Return the window as text for other ranks."""
        return json.dumps([self.start, self.steps])

    @staticmethod
    def read(text: str | bytes) -> Window:
        """Return the window that `text` describes."""
        start, steps = json.loads(text)
        return Window(int(start), int(steps))


def seconds(every: str | float | None, name: str = "every") -> float | None:
    """Return seconds from ``"30min"``, ``"2h"`` or a number; None is never.

    Raises `ValueError` for anything else, with the `name` of the argument.
    """
    if every is None:
        return None
    if isinstance(every, str):
        match = _EVERY.fullmatch(every.lower())
        if match is None or match[2] not in _UNITS_S:
            message = f'{name} must be a time such as "30min" or "2h", not {every!r}'
            raise ValueError(message)
        every = float(match[1]) * _UNITS_S[match[2]]
    if not (math.isfinite(every) and every > 0):
        message = f"{name} must be above zero, not {every!r}"
        raise ValueError(message)
    return float(every)


class Sampling:
    """Decides, on global rank 0, when the next window begins.

    `every_s` is the time between the beginnings of two windows, or None to record on request only.
    A periodic window has `steps` steps, or fewer where these would take longer than `longest_s`.
    In the `warmup` steps before a window the hooks run and nothing is kept. All ranks read a
    message of rank 0 within `heard_within_s`.
    """

    def __init__(
        self,
        every_s: float | None,
        steps: int,
        warmup: int,
        heard_within_s: float = 0.0,
        longest_s: float | None = None,
    ) -> None:
        if steps < 1 or warmup < 0:
            message = f"steps must be at least 1 and warmup at least 0, not {steps} and {warmup}"
            raise ValueError(message)
        self.steps = steps
        self.warmup = warmup
        self.every_s = every_s
        self._longest_s = math.inf if longest_s is None else longest_s
        self._lead_s = max(_LEAD_S, heard_within_s)
        self._due_s: float | None = None
        self._asked: int | None = None
        self._seen: list[float] = []

    def ask(self, steps: int) -> None:
        """Request a window as soon as possible."""
        self._asked = steps

    def decide(self, step: int, now_s: float) -> Window | None:
        """Return the next window if it is due, at the begin of `step`; `now_s` is monotonic."""
        self._seen = [*self._seen, now_s][-_FIRST_STEPS - 1 :]
        if len(self._seen) <= _FIRST_STEPS:
            return None
        asked, self._asked = self._asked, None
        if asked is None:
            if self.every_s is None or (self._due_s is not None and now_s < self._due_s):
                return None
            self._due_s = now_s + self.every_s
        step_time_s = max((self._seen[-1] - self._seen[0]) / _FIRST_STEPS, 1e-6)
        lead = max(_LEAD_STEPS, math.ceil(self._lead_s / step_time_s))
        return Window(step + lead + self.warmup, asked or self._within(step_time_s))

    def _within(self, step_time_s: float) -> int:
        """Return how many steps a periodic window has."""
        if self.steps * step_time_s <= self._longest_s:
            return self.steps
        return min(self.steps, max(_LEAST_STEPS, int(self._longest_s / step_time_s)))
