"""Pipeline templates, as reports have them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageLayers:
    """How many of the model's layers each stage has, embedding and head not counted.

    Parameters
    ----------
    today : tuple of int
        As it is.
    template : tuple of int
        As it is recommended.
    """

    today: tuple[int, ...]
    template: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What a microbatch takes on the slowest DP rank of each stage, forward and backward together.

    Parameters
    ----------
    today : tuple of float
        As it is, ms.
    template : tuple of float
        As it is recommended, ms.
    """

    today: tuple[float, ...]
    template: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WithheldTemplate:
    """A cause calls for a template, but there is none.

    Parameters
    ----------
    withheld : str
        A code: ``layers_unknown`` where the metadata do not say how many layers each stage has,
        or the planner's.
    reason : str
        The same in words.
    """

    withheld: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTemplate:
    """A better division of the layers over the stages, replayed on the session's own durations.

    Parameters
    ----------
    withheld, reason : None
        A template that is withheld has these alone.
    layers : StageLayers
        Layers of each stage.
    stage_ms : StageTimes
        Time of each stage.
    worker_of_stage : tuple of int
        For each stage of the template the stage whose workers take it.
    speed_of_worker : tuple of float
        Speed of the slowest worker of each stage of today; 1 is that of its peers.
    embedding, head : bool
        Whether the first or the last stage also computes an embedding or a head.
    microbatches : int
        Of a step.
    proven : bool
        Whether the template is optimal for the measured times, by the planner's certificate.
    predicted_step_time : float
        Mean step time with it, seconds.
    predicted_gain : float
        The share of today's step time that it saves.
    """

    withheld: None = None
    reason: None = None
    layers: StageLayers
    stage_ms: StageTimes
    worker_of_stage: tuple[int, ...]
    speed_of_worker: tuple[float, ...]
    embedding: bool
    head: bool
    microbatches: int
    proven: bool
    predicted_step_time: float
    predicted_gain: float
