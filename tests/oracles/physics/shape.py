"""The kind of job that is executed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Schedule(StrEnum):
    """The order of a stage's passes.

    ZERO_BUBBLE: a backward makes the gradients of its inputs first and those of the weights later,
    when there is nothing else to do.
    """

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero-bubble"


class Posting(StrEnum):
    """When a stage posts its receives.

    OVERLAP: each on a stream of its own, as soon as the previous pass of its direction is over.
    WINDOW: after the previous pass of either direction, while that pass's send is under way.
    BLOCKING: together with the send of the other direction, and both are waited for.
    """

    OVERLAP = "overlap"
    WINDOW = "window"
    BLOCKING = "blocking"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes and habits of a job.

    Parameters
    ----------
    dp, pp, vpp, tp : int
        Data-parallel ranks, pipeline stages, model chunks a stage, tensor-parallel ranks.
    microbatches, steps : int
        Microbatches a step and DP rank; recorded steps.
    schedule : Schedule
    posting : Posting
    host_waits : bool
        Whether the host waits for each receive before it launches on; else it runs ahead.
    tensor_traced : bool
        Whether the collectives of all tensor-parallel ranks are recorded.
    scatter_recorded : bool
        Whether reduce-scatters of gradients are.
    lengths_recorded : bool
        Whether the metadata name the lengths of sequences.
    hosts_of : int
        Workers a host holds.
    cp : int
        Context-parallel ranks; where there are several, their collectives are recorded.
    ep : int
        DP ranks that share the experts of each layer, and whose all-to-alls are recorded.
    groups : int
        Groups of neighboring DP ranks that each shard the weights of a stage by themselves.
    """

    dp: int
    pp: int
    vpp: int
    tp: int
    microbatches: int
    steps: int
    schedule: Schedule
    posting: Posting
    host_waits: bool
    tensor_traced: bool = False
    scatter_recorded: bool = True
    lengths_recorded: bool = False
    hosts_of: int = 1
    cp: int = 1
    ep: int = 1
    groups: int = 1

    @property
    def lanes(self) -> tuple[int, int]:
        """Return (steps, DP ranks), all of which are executed together."""
        return (self.steps, self.dp)

    @property
    def passes(self) -> tuple[int, int, int, int, int]:
        """Return the shape of one direction's passes: (pp, vpp, microbatches, steps, dp)."""
        return (self.pp, self.vpp, self.microbatches, self.steps, self.dp)
