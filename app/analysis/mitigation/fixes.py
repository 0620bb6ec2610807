"""Fixes and pipeline templates as a report holds them."""

from __future__ import annotations

from dataclasses import dataclass

# ---- A change to a session, and what it is predicted to bring ----------------------------------


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


# ---- Pipeline templates, as reports have them --------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageLayers:
    """How many of the model's layers each stage has, embedding and head not counted."""

    today: tuple[int, ...]
    """As it is."""
    template: tuple[int, ...]
    """As it is recommended."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """A microbatch's forward and backward time on the slowest DP rank of each stage."""

    today: tuple[float, ...]
    """As it is, ms."""
    template: tuple[float, ...]
    """As it is recommended, ms."""


@dataclass(frozen=True, slots=True)
class WithheldTemplate:
    """A cause calls for a template, but there is none."""

    withheld: str
    """A code: ``layers_unknown`` where the metadata do not say how many layers each stage has, or
    the planner's."""
    reason: str
    """The same in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTemplate:
    """A better division of the layers over the stages, replayed on the session's own durations."""

    withheld: None = None
    """A template that is withheld has these alone."""
    reason: None = None
    """A template that is withheld has these alone."""
    layers: StageLayers
    """Layers of each stage."""
    stage_ms: StageTimes
    """Time of each stage."""
    worker_of_stage: tuple[int, ...]
    """For each stage of the template the stage whose workers take it."""
    speed_of_worker: tuple[float, ...]
    """Speed of the slowest worker of each stage of today; 1 is that of its peers."""
    embedding: bool
    """Whether the first or the last stage also computes an embedding or a head."""
    head: bool
    """Whether the first or the last stage also computes an embedding or a head."""
    microbatches: int
    """Of a step."""
    proven: bool
    """Whether it is proven that no template executes faster at the measured times."""
    gap: float | None = None
    """The share by which its execution at the measured times is at most above the fastest possible
    one, by the planner's certificate; None where nothing is proven."""
    predicted_step_time: float
    """Mean step time with it, seconds."""
    predicted_gain: float
    """The share of today's step time that it saves."""
    at_most: bool = False
    """Whether that is the most that it can save: the recording cannot tell what layers take from
    what an embedding or a head does."""
