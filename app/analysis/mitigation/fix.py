"""A change to a session, and what it is predicted to bring."""

from __future__ import annotations

from dataclasses import dataclass

ByChunk = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Division:
    """How the layers of the model are divided, and how they would be better."""

    today: ByChunk
    """Layers of each chunk of each stage, embedding and head not counted: as they are, and as is
    recommended."""
    layers: ByChunk
    """Layers of each chunk of each stage, embedding and head not counted: as they are, and as is
    recommended."""
    layer_ms: float
    """What a layer takes of a microbatch, forward and backward together, ms."""
    embedding_ms: float
    """The same of the embedding and of the head with the loss."""
    head_ms: float
    """The same of the embedding and of the head with the loss."""
    proven: bool
    """Whether no division is better for what stages lastingly take."""
    max_layers: tuple[int, ...] | None
    """The most layers that each stage can hold, as the metadata say; None where they do not."""
    flag: str
    """What tells Megatron-LM to divide the layers so."""

    @property
    def text(self) -> str:
        """Return the division in a line."""
        return as_text(self.layers)


def as_text(layers: ByChunk) -> str:
    """Return a division as launchers and people write it.

    Examples
    --------
    >>> as_text(((20,), (21,), (21,), (18,)))
    '[20, 21, 21, 18]'
    >>> as_text(((5, 5), (6, 4)))
    '[[5, 5], [6, 4]]'
    """
    if all(len(chunks) == 1 for chunks in layers):
        return str([count for (count,) in layers])
    return str([list(chunks) for chunks in layers])


@dataclass(frozen=True, slots=True)
class PlannedCollections:
    """Garbage collected on all workers in the same steps."""

    every: int
    """Steps from one collection to the next."""
    pause_s: float
    """How long all pause for one, seconds: for the longest of all workers'."""


@dataclass(frozen=True, slots=True)
class Balancing:
    """How sequences are to be divided: what a data loader gives to ``paceline_client.balance``.

    A microbatch costs ``fixed + linear·Σs + quadratic·Σs²`` of the lengths s of its sequences,
    forward and backward on the mean stage.
    """

    fixed_ms: float
    """As the session shows it, ms."""
    linear_ms: float
    """As the session shows it, ms."""
    quadratic_ms: float
    """As the session shows it, ms."""
    max_tokens: int
    """The most tokens of a microbatch: those of the largest one today."""
    stages: int
    """Pipeline stages."""

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
    # Today's step time less what the replay with the change saves; 0 until it has been replayed.
    step_time_s: float = 0.0
    gain: float = 0.0  # the share of today's step time that it saves
    cause: str | None = None  # the named cause that it removes
    # Whether the gain is the most that such a change can bring, and not what a change that is
    # known will.
    at_most: bool = False
    division: Division | None = None  # how the layers are to be divided
    collections: PlannedCollections | None = None  # when garbage is to be collected
    balancing: Balancing | None = None  # how sequences are to be divided
