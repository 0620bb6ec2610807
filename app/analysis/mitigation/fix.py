"""A change to a session, and what it is predicted to bring."""

from __future__ import annotations

from dataclasses import dataclass

from app.analysis.mitigation.layers.divided import Division


@dataclass(frozen=True, slots=True)
class PlannedCollections:
    """Garbage collected on all workers in the same steps.

    Parameters
    ----------
    every : int
        Steps from one collection to the next.
    pause_s : float
        How long all pause for one, seconds: for the longest of all workers'.
    """

    every: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Balancing:
    """How sequences are to be divided: what a data loader gives to ``paceline_client.balance``.

    A microbatch costs ``fixed + linear·Σs + quadratic·Σs²`` of the lengths s of its sequences,
    forward and backward on the mean stage.

    Parameters
    ----------
    fixed_ms, linear_ms, quadratic_ms : float
        As the session shows it, ms.
    max_tokens : int
        The most tokens of a microbatch: those of the largest one today.
    stages : int
        Pipeline stages.
    """

    fixed_ms: float
    linear_ms: float
    quadratic_ms: float
    max_tokens: int
    stages: int

    @property
    def call(self) -> str:
        """Return the call that divides a batch so."""
        return (
            f"balance(batch, cost=Cost({self.fixed_ms:.4g}, {self.linear_ms:.4g}, "
            f"{self.quadratic_ms:.4g}), max_tokens={self.max_tokens}, stages={self.stages})"
        )


@dataclass(frozen=True, slots=True)
class Fix:
    """A change, and the mean step time with it."""

    # action, title, detail: a code, and what it is in words
    action: str
    title: str
    detail: str
    step_time_s: float  # today's step time less what the replay with the change saves
    gain: float  # the share of today's step time that it saves
    cause: str | None = None  # the named cause that it removes
    # Whether the gain is the most that such a change can bring, and not what a change that is
    # known will.
    at_most: bool = False
    division: Division | None = None  # how the layers are to be divided
    collections: PlannedCollections | None = None  # when garbage is to be collected
    balancing: Balancing | None = None  # how sequences are to be divided
