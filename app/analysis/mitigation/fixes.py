"""Report types of fixes and of pipeline templates, with their predicted gains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Maximum number of DP ranks whose numbers of microbatches a line of code lists.
_MOST_LISTED: Final = 8
# Number of layers, by stage and chunk.
ByChunk = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Division:
    """Division of the model's layers over stages: today's and the recommended one."""

    today: ByChunk
    """Number of layers of each chunk of each stage today, without embedding and head."""
    layers: ByChunk
    """Recommended number of layers of each chunk of each stage, without embedding and head."""
    layer_ms: float
    """Time of a layer for one microbatch, forward and backward together, ms."""
    embedding_ms: float
    """Time of the embedding for one microbatch, forward and backward together, ms."""
    head_ms: float
    """Time of the head with the loss for one microbatch, forward and backward together, ms."""
    proven: bool
    """Whether the search proved that no other division is faster at the typical times of the
    stages.
    """
    max_layers: tuple[int, ...] | None
    """Maximum number of layers that the memory of each stage holds, from the metadata; None if they
    lack it.
    """
    flag: str
    """Flag of Megatron-LM that sets this division."""

    @property
    def text(self) -> str:
        """Return the recommended division as one line of text."""
        return as_text(self.layers)


def as_text(layers: ByChunk) -> str:
    """Return a division in the notation of launchers.

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
    """Garbage collection in the same steps on all workers."""

    every: int
    """Number of steps from one collection to the next."""
    pause_s: float
    """Predicted common pause of one collection, seconds: the longest of all workers' pauses."""


@dataclass(frozen=True, slots=True)
class Balancing:
    """Arguments of ``paceline_client.balance``, with which a data loader evens out microbatches.

    A microbatch costs ``fixed + linear·Σs + quadratic·Σs²`` of the lengths s of its sequences,
    forward and backward on the mean stage.
    """

    fixed_ms: float
    """Cost of a microbatch that does not depend on its sequences, ms."""
    linear_ms: float
    """Cost of each token, ms."""
    quadratic_ms: float
    """Cost of each squared token of a sequence (attention), ms."""
    max_tokens: int
    """Maximum number of tokens of a microbatch: those that memory holds according to the metadata,
    else the tokens of the largest microbatch today.
    """
    stages: int
    """Number of pipeline stages."""

    @property
    def call(self) -> str:
        """Return the Python call that divides a batch with these arguments."""
        return (
            f"balance(batch, cost=Cost({self.fixed_ms:.4g}, {self.linear_ms:.4g}, "
            f"{self.quadratic_ms:.4g}), max_tokens={self.max_tokens}, stages={self.stages})"
        )


@dataclass(frozen=True, slots=True)
class Redistribution:
    """Numbers of microbatches that relieve the DP ranks with a slow worker."""

    today: int
    """Number of microbatches of each DP rank in a step today."""
    microbatches: tuple[int, ...]
    """Recommended number of microbatches of each DP rank."""
    held_today: int
    """Most microbatches whose activations a stage holds at once today."""
    held: int
    """Most microbatches whose activations a stage then holds at once: an upper bound."""

    @property
    def line(self) -> str:
        """Return the Python line that sets a rank's number of microbatches and weight of its loss.

        If many numbers change, it refers to the list `microbatches`.

        Examples
        --------
        >>> Redistribution(8, (8, 6, 9, 9), 4, 4).line
        'n = {1: 6, 2: 9, 3: 9}.get(dp_rank, 8); weight = n / 8'
        """
        moved = {dp: n for dp, n in enumerate(self.microbatches) if n != self.today}
        mine = f"{moved}.get(dp_rank, {self.today})"
        if len(moved) > _MOST_LISTED:
            mine = "microbatches[dp_rank]"
        return f"n = {mine}; weight = n / {self.today}"


@dataclass(frozen=True, slots=True)
class Fix:
    """A change to the job, and its predicted mean step time."""

    action: str  # stable code
    title: str
    detail: str
    # Mean step time today minus the time that the replay with the change saves, seconds; 0 before
    # the replay.
    step_time_s: float = 0.0
    gain: float = 0.0  # saved share of today's step time
    cause: str | None = None  # named cause that the change removes
    # Whether the gain is an upper bound for all changes of this kind, not a prediction for a
    # specific change.
    at_most: bool = False
    division: Division | None = None
    collections: PlannedCollections | None = None
    balancing: Balancing | None = None
    redistribution: Redistribution | None = None


@dataclass(frozen=True, slots=True)
class StageLayers:
    """Number of layers of each stage, without embedding and head."""

    today: tuple[int, ...]
    """Layers of each stage today."""
    template: tuple[int, ...]
    """Layers of each stage in the recommended template."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """A microbatch's forward and backward time on the slowest DP rank of each stage."""

    today: tuple[float, ...]
    """Time of each stage today, ms."""
    template: tuple[float, ...]
    """Time of each stage in the recommended template, ms."""


@dataclass(frozen=True, slots=True)
class WithheldTemplate:
    """Reason why a cause that a template could fix has no template."""

    withheld: str
    """Stable code of the reason: ``layers_unknown`` if the metadata lack the layers of each stage,
    or a code of the planner.
    """
    reason: str
    """The reason as a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTemplate:
    """A better division of the layers over the stages, replayed on the session's own durations."""

    withheld: None = None
    """Always null: only a withheld template has a code."""
    reason: None = None
    """Always null: only a withheld template has a reason."""
    layers: StageLayers
    """Layers of each stage, today and recommended."""
    stage_ms: StageTimes
    """Time of each stage, today and recommended."""
    worker_of_stage: tuple[int, ...]
    """For each stage of the template: number of today's stage whose workers will run it."""
    speed_of_worker: tuple[float, ...]
    """Speed of the slowest worker of each stage today; 1 is the speed of its peers."""
    embedding: bool
    """Whether the first stage also computes an embedding."""
    head: bool
    """Whether the last stage also computes a head."""
    microbatches: int
    """Number of microbatches in a step."""
    proven: bool
    """Whether it is proven that no template executes faster at the measured times."""
    gap: float | None = None
    """Proven optimality gap of the template's execution at the measured times, a share; None if no
    gap is proven.
    """
    predicted_step_time: float
    """Mean step time with the template, seconds."""
    predicted_gain: float
    """Share of today's step time that the template saves."""
    at_most: bool = False
    """Whether the gain is an upper bound, because the recording does not separate the time of
    layers from the time of an embedding or a head.
    """
