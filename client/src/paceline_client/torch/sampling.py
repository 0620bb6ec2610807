"""When to record: windows of steps, periodic ones and requested ones."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Final

_UNITS_S: Final = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_EVERY: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")

# All ranks must hear of a window before it begins, though their steps drift apart.
_LEAD_S: Final = 1.0
_LEAD_STEPS: Final = 2
# The first steps compile and connect; after these their time is known.
_FIRST_STEPS: Final = 3


@dataclass(frozen=True)
class Window:
    """Steps to record."""

    # start, steps: first step, and how many
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
        """Return what ranks tell one another."""
        return json.dumps([self.start, self.steps])

    @staticmethod
    def read(text: str | bytes) -> Window:
        """Return the window that `text` wrote."""
        start, steps = json.loads(text)
        return Window(int(start), int(steps))


def seconds(every: str | float | None) -> float | None:
    """Read a time such as ``"30min"``, ``"2h"`` or a number of seconds; None is never.

    Raises
    ------
    ValueError
        If it is none.
    """
    if every is None:
        return None
    if isinstance(every, str):
        match = _EVERY.fullmatch(every.lower())
        if match is None or match[2] not in _UNITS_S:
            message = f'every is a time such as "30min" or "2h", unlike {every!r}'
            raise ValueError(message)
        every = float(match[1]) * _UNITS_S[match[2]]
    if not (math.isfinite(every) and every > 0):
        message = f"every is a time above zero, unlike {every!r}"
        raise ValueError(message)
    return float(every)


class Sampling:
    """Decides, on global rank 0, when the next window begins.

    Parameters
    ----------
    every_s : float or None
        Seconds between the beginnings of two windows; None records on request only.
    steps, warmup : int
        Steps of a window; steps before it in which the hooks run and nothing is kept.
    heard_within_s : float
        Seconds after which all ranks have heard what rank 0 tells.
    """

    def __init__(
        self, every_s: float | None, steps: int, warmup: int, heard_within_s: float = 0.0
    ) -> None:
        if steps < 1 or warmup < 0:
            message = f"a window has at least one step, and no negative warm-up: {steps}, {warmup}"
            raise ValueError(message)
        self.steps = steps
        self.warmup = warmup
        self._every_s = every_s
        self._lead_s = max(_LEAD_S, heard_within_s)
        self._due_s: float | None = None
        self._asked: int | None = None
        self._seen: list[float] = []

    def ask(self, steps: int) -> None:
        """Record a number of steps as soon as all ranks can."""
        self._asked = steps

    def decide(self, step: int, now_s: float) -> Window | None:
        """Return the next window if now is the time to announce it.

        Parameters
        ----------
        step : int
            The step that begins now.
        now_s : float
            Of a clock that is not set.
        """
        self._seen = [*self._seen, now_s][-_FIRST_STEPS - 1 :]
        if len(self._seen) <= _FIRST_STEPS:
            return None
        asked, self._asked = self._asked, None
        if asked is None:
            if self._every_s is None or (self._due_s is not None and now_s < self._due_s):
                return None
            self._due_s = now_s + self._every_s
        step_time_s = max((self._seen[-1] - self._seen[0]) / _FIRST_STEPS, 1e-6)
        lead = max(_LEAD_STEPS, math.ceil(self._lead_s / step_time_s))
        return Window(step + lead + self.warmup, asked or self.steps)
