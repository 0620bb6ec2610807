"""What is watched: two measures of the whole job, each stage, each rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.pulse.columns import Int64

# What a step takes longer than computing explains, and computing of all ranks.
REST: Final = 0
COMPUTING: Final = 1
OF_JOB: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class Subjects:
    """The subjects of a process group, as columns: of the job, of its stages, of its ranks.

    Parameters
    ----------
    ranks : int64[ranks]
        Global ranks, in the order in which they came.
    stages : int64[stages]
        Pipeline stages, rising.
    stage_of : int64[ranks]
        Index of each rank's stage.
    host_of : int64[ranks]
        A number for each host; -1 where it is not known.
    """

    ranks: Int64
    stages: Int64
    stage_of: Int64
    host_of: Int64

    @classmethod
    def of(cls, ranks: Int64, pp_ranks: Int64, hosts: Mapping[int, str]) -> Subjects:
        """Return those of some ranks."""
        stages, stage_of = np.unique(pp_ranks, return_inverse=True)
        number = {name: index for index, name in enumerate(sorted(set(hosts.values())))}
        host_of = [number[hosts[rank]] if rank in hosts else -1 for rank in ranks.tolist()]
        return cls(ranks, stages, stage_of.astype(np.int64), np.array(host_of, np.int64))

    @property
    def number(self) -> int:
        """Return how many there are."""
        return OF_JOB + len(self.stages) + len(self.ranks)

    @property
    def first_rank(self) -> int:
        """Return the column of the first rank."""
        return OF_JOB + len(self.stages)

    @property
    def of_stages(self) -> slice:
        """Return the columns of stages."""
        return slice(OF_JOB, self.first_rank)

    @property
    def of_ranks(self) -> slice:
        """Return the columns of ranks."""
        return slice(self.first_rank, self.number)

    def members(self, stage: int) -> Int64:
        """Return the indices of the ranks of a stage, by its index."""
        return np.flatnonzero(self.stage_of == stage)

    def places_in(self, later: Subjects) -> Int64:
        """Return which columns of a later, larger group these are."""
        stages = np.searchsorted(later.stages, self.stages) + OF_JOB
        ranks = np.arange(len(self.ranks)) + later.first_rank
        return np.concatenate([np.arange(OF_JOB), stages, ranks])
