"""A change to a session, and what it is predicted to bring."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fix:
    """A change, and the mean step time with it.

    Parameters
    ----------
    action, title, detail : str
        A code, and what it is in words.
    step_time_s : float
        Today's step time less what the replay with the change saves.
    gain : float
        The share of today's step time that it saves.
    """

    action: str
    title: str
    detail: str
    step_time_s: float
    gain: float
