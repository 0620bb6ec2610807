"""A change to a session, and what it is predicted to bring."""

from __future__ import annotations

from dataclasses import dataclass

from app.analysis.mitigation.layers.division import Division


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
    cause : str or None
        The named cause that it removes.
    at_most : bool
        Whether the gain is the most that such a change can bring, and not what a change that is
        known will.
    division : Division or None
        How the layers are to be divided.
    """

    action: str
    title: str
    detail: str
    step_time_s: float
    gain: float
    cause: str | None = None
    at_most: bool = False
    division: Division | None = None
