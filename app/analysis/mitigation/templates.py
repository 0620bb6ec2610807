"""Pipeline templates, as reports have them."""

from __future__ import annotations

from dataclasses import dataclass


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
