"""Report types of fixes and of pipeline templates, with their predicted gains."""

from __future__ import annotations

from dataclasses import dataclass

# Number of layers, by stage and chunk.
ByChunk = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Division:
    """Division of the model's layers over stages: today's and the recommended one."""

    today: ByChunk
    """Layers of each chunk of each stage today, embedding and head not counted."""
    layers: ByChunk
    """Recommended layers of each chunk of each stage, embedding and head not counted."""
    layer_ms: float
    """Time of a layer for one microbatch, forward and backward together, ms."""
    embedding_ms: float
    """Time of the embedding for one microbatch, forward and backward together, ms."""
    head_ms: float
    """Time of the head with the loss for one microbatch, forward and backward together, ms."""
    proven: bool
    """Whether no other division is better at the typical times of the stages."""
    max_layers: tuple[int, ...] | None
    """The most layers that each stage can hold, from the metadata; None where they are absent."""
    flag: str
    """Megatron-LM's flag for this division."""

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
    """Steps from one collection to the next."""
    pause_s: float
    """Predicted common pause of one collection, seconds: the longest of all workers' pauses."""


@dataclass(frozen=True, slots=True)
class Balancing:
    """Arguments of ``paceline_client.balance``, with which a data loader evens out microbatches.

    A microbatch costs ``fixed + linear·Σs + quadratic·Σs²`` of the lengths s of its sequences,
    forward and backward on the mean stage.
    """

    fixed_ms: float
    """Cost of a microbatch whatever its sequences, ms."""
    linear_ms: float
    """Cost of each token, ms."""
    quadratic_ms: float
    """Cost of each squared token of a sequence (attention), ms."""
    max_tokens: int
    """The most tokens of a microbatch: those of the largest one today."""
    stages: int
    """Pipeline stages."""

    @property
    def call(self) -> str:
        """Return the Python call that divides a batch with these arguments."""
        return (
            f"balance(batch, cost=Cost({self.fixed_ms:.4g}, {self.linear_ms:.4g}, "
            f"{self.quadratic_ms:.4g}), max_tokens={self.max_tokens}, stages={self.stages})"
        )


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


@dataclass(frozen=True, slots=True)
class StageLayers:
    """Number of layers of each stage, embedding and head not counted."""

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
    """A code: ``layers_unknown`` where the metadata lack the layers of each stage, or the
    planner's."""
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
    """Layers of each stage."""
    stage_ms: StageTimes
    """Time of each stage."""
    worker_of_stage: tuple[int, ...]
    """For each stage of the template, today's stage of the workers that run it."""
    speed_of_worker: tuple[float, ...]
    """Speed of the slowest worker of each stage today; 1 is the speed of its peers."""
    embedding: bool
    """Whether the first stage also computes an embedding."""
    head: bool
    """Whether the last stage also computes a head."""
    microbatches: int
    """Microbatches of a step."""
    proven: bool
    """Whether it is proven that no template executes faster at the measured times."""
    gap: float | None = None
    """Proven optimality gap of its execution at the measured times, a share; None without proof."""
    predicted_step_time: float
    """Mean step time with the template, seconds."""
    predicted_gain: float
    """Saved share of today's step time."""
    at_most: bool = False
    """Whether the gain is an upper bound: the recording does not separate the time of layers from
    that of an embedding or a head."""
