"""A session as the finders of causes see it: observed, and taken apart where that can be done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from app.analysis.diagnosis.between.passing import Passing
from app.analysis.diagnosis.late_launches import StalledLaunches, stalled_launches
from app.analysis.diagnosis.lengths.recorded import some_lengths
from app.analysis.diagnosis.lengths.work import slow_together
from app.analysis.diagnosis.observation import Explained, Observation
from app.analysis.diagnosis.past.comparison import EarlierSession, Past, against_past
from app.analysis.diagnosis.past.computing import computing_of
from app.analysis.diagnosis.ranks.waits import (
    Waiting,
    has_tensor_ranks,
    measure_waits,
    waiting_groups,
)
from app.analysis.diagnosis.stages import StageOrWorker, tell_apart
from app.analysis.diagnosis.typical import Typical, slowness_by_stage, take_apart
from app.analysis.replay.layout.dense import FloatArray


@dataclass(frozen=True, eq=False)
class Signs:
    """A session as the finders of causes see it."""

    observation: Observation
    step_ns: float  # the mean recorded step
    earlier: Sequence[EarlierSession] = ()  # of the same job
    passing: Passing | None = None  # what passes between steps, where that is asked for

    @cached_property
    def has_tensor_ranks(self) -> bool:
        """Return whether any tensor-parallel group's ranks recorded their collectives."""
        return has_tensor_ranks(self.observation.trace)

    @cached_property
    def waiting(self) -> list[Waiting]:
        """Return the tensor-parallel groups that wait for their ranks; empty if not recorded."""
        if not self.has_tensor_ranks:
            return []
        return waiting_groups(self.observation, measure_waits(self.observation))

    @cached_property
    def typical(self) -> Typical | None:
        """Return computations taken apart; None where stages are not `comparable`."""
        observation = self.observation
        if not observation.comparable:
            return None
        return take_apart(observation.passes, observation.once(some_lengths))

    @cached_property
    def past(self) -> Past | None:
        """Return how the session compares with the job's past; None where it has none."""
        if not self.earlier:
            return None
        now = computing_of(self.observation, self.observation.once(slow_together).factor)
        return against_past(self.observation, now, self.earlier)

    @cached_property
    def stalled_launches(self) -> StalledLaunches | None:
        """Return the forwards whose launches stall, one here and one there."""
        return stalled_launches(self.observation, self.step_ns)

    @cached_property
    def stage_or_worker(self) -> StageOrWorker:
        """Return what makes a stage take longest."""
        return tell_apart(self.observation, self.past)

    @property
    def slowness(self) -> Mapping[str, FloatArray] | None:
        """Return what `Typical.worker` is; None where no worker can be held against its peers."""
        if self.typical is not None:
            return self.typical.worker
        if self.observation.comparable_within_stages:
            return slowness_by_stage(self.observation)
        return None

    def less(self, explained: Explained) -> Signs:
        """Return the signs that remain when some of the time is explained."""
        return replace(self, observation=replace(self.observation, explained=explained))
