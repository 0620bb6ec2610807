"""Parts of a report: coverage of the recording, clocks, and fidelity of the replay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from app.analysis.diagnosis.locations import Worker
from app.analysis.json_text import OMITTED
from app.analysis.replay.clock_steps import ClockStep
from app.analysis.replay.impossible_times import ImpossibleDuration
from app.analysis.trace.metadata import Unmapped

# Lower and upper end of a 95 % interval, by bootstrap over the analyzed steps.
Interval: TypeAlias = tuple[float, float]
Numbers: TypeAlias = tuple[float, ...]
# Values indexed by DP rank, then by stage.
ByCell: TypeAlias = tuple[tuple[float, ...], ...]
PartialByCell: TypeAlias = tuple[tuple[float | None, ...], ...]
CountByCell: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Recreated:
    """Operations that the recorder lost and that were re-created from their neighbors."""

    operations: int
    """How many."""
    by_optype: dict[str, int]
    """How many of each operation type; those without any have no key."""
    by_worker: CountByCell
    """How many on each worker, [dp][pp]."""


@dataclass(frozen=True, slots=True)
class ChunkProducer:
    """Counts of the chunks that a producer sent."""

    producer: str
    """Its name."""
    chunks: int
    """How many of each it sent."""
    operations: int
    """How many of each it sent."""


@dataclass(frozen=True, slots=True)
class EndedEarly:
    """A producer that sent no last chunk, such as a process that was killed."""

    producer: str
    """Its name."""
    last_step: int | None
    """The last step that it sent; None where it sent nothing."""

    @property
    def words(self) -> str:
        """Return the producer and its last step: ``rank-3 after step 17``."""
        if self.last_step is None:
            return f"{self.producer} before its first step"
        return f"{self.producer} after step {self.last_step}"


@dataclass(frozen=True, slots=True)
class RepeatedChunk:
    """A chunk whose operations were sent twice."""

    producer: str
    """Who sent it."""
    chunk: int
    """Its number."""
    operations: int
    """Its operations that had been received before and were dropped."""


@dataclass(frozen=True, slots=True)
class DroppedOperations:
    """Operations that were received twice."""

    operations: int
    """How many were dropped."""
    chunks: tuple[RepeatedChunk, ...]
    """The chunks that contained them."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of a session, accepted and refused."""

    chunks: int
    """How many were accepted."""
    producers: tuple[ChunkProducer, ...]
    """By name."""
    sealed_by: Literal["request", "final", "silence"]
    """What ended the session: a request, the last producer's last chunk, or that no more came."""
    refused_chunks: int
    """How many were refused."""
    refused_bytes: int
    """Their size."""
    dropped: DroppedOperations
    """Operations that were received twice."""
    ended_early: tuple[EndedEarly, ...] = field(default=(), metadata=OMITTED)
    """Producers whose recording ended before the session did; no key where there are none."""


@dataclass(frozen=True, slots=True)
class MissingWorker:
    """A worker that recorded nothing: the replay has a typical worker in its place."""

    worker: Worker
    """Its place: (DP rank, stage)."""
    rank: int
    """Its global rank, by the numbers of the others."""
    awaited_s: float | None
    """What of a mean step the other DP ranks of its stage pass together in collectives, seconds:
    the transfers, and the wait for it where it came last. None where no collective is recorded."""
    came_last: tuple[int, ...]
    """Steps in which such a collective took far longer than in most: it came last there."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The part of the session that was received, repaired or excluded."""

    ranks_expected: int
    """Workers of the job."""
    ranks_present: int
    """Those of them that were recorded."""
    operations: int
    """Operations of the trace."""
    operations_replayed: int
    """Operations that the replay runs, re-created ones included."""
    recreated: Recreated
    """Operations that were re-created."""
    unknown_op_types: dict[str, int]
    """Operations of unknown types, by type. Collectives within a worker, and of ranks that share
    experts, are not replayed, but the diagnosis uses them."""
    unanswered: dict[str, int]
    """Sends without receives that were excluded, by operation type."""
    absent_op_types: tuple[str, ...]
    """Types that the replay knows and of which the trace has none."""
    clamped_transfers: int
    """Transfers whose duration came out below -10 ms and counts as 0."""
    clamped_launch_delays: int
    """Launch delays of -10 ms or below, which count as 0."""
    chunks: Chunks | None = field(default=None, metadata=OMITTED)
    """Its chunks; no key where it was sent in one body."""
    copies: int = field(default=0, metadata=OMITTED)
    """Operations that were in the recording twice and were dropped once; no key where there are
    none. Those in two chunks are counted in `chunks`."""
    impossible_durations: tuple[ImpossibleDuration, ...] = field(default=(), metadata=OMITTED)
    """Operations that cannot have taken as long as was recorded: what waits for them on the same
    rank began long before. They count with what they usually take; no key where there are none."""
    missing: tuple[MissingWorker, ...] = field(default=(), metadata=OMITTED)
    """Workers that were not recorded; no key where all were."""
    unmapped: tuple[Unmapped, ...] = field(default=(), metadata=OMITTED)
    """Parts of another program's recording that are no operation; no key where there are none."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Differences between the clocks of the ranks."""

    aligned: bool
    """Whether starts were shifted by the offsets before the replay."""
    absolute: bool
    """Whether starts are readings of host clocks; if not, they count from each step."""
    offsets_ns: ByCell
    """How far each worker's clock is ahead of the common one, ns, [dp][pp]."""
    residual_ns: ByCell
    """How far simultaneous ends still differ after alignment, ns, [dp][pp]."""
    drift_ppm: ByCell | None
    """Drift of each clock, parts in a million, [dp][pp]; None where starts count from each step."""
    unconnected: tuple[Worker, ...]
    """One worker of each group of ranks that no recorded communication connects with the rest: (DP
    rank, stage)."""
    warnings: tuple[str, ...]
    """Sentences."""
    settings: tuple[ClockStep, ...] = field(default=(), metadata=OMITTED)
    """Clocks that were set between two steps; starts count as if they had not been. No key where
    there are none."""


@dataclass(frozen=True, slots=True)
class LateWorker:
    """A worker that launches operations late."""

    worker: Worker
    """Its place: (DP rank, stage)."""
    share: float
    """What its late launches alone add to a step, as a share of the recorded step time."""


@dataclass(frozen=True, slots=True)
class LateOpType:
    """An operation type that is launched late."""

    op_type: str
    """Its name."""
    share: float
    """What its late launches add to a step, as a share of the recorded step time."""
    workers: tuple[LateWorker, ...]
    """Those that do so most, the latest first."""


@dataclass(frozen=True, slots=True)
class MadeAdaptation:
    """A way in which the replay follows this job and departs from the paper's dependency model."""

    adaptation: str
    """Its name, such as ``blocking_transfers``."""
    sentence: str
    """What the job does, in words."""
    where: tuple[str, ...]
    """Where in the job: op types and stages, links, microbatches."""
    confidence: float
    """Share of the cases looked at that show it, 0 to 1."""
    discrepancy_before: float | None
    """Without it and with it; None where it is made on its sign alone."""
    discrepancy_after: float | None
    """Without it and with it; None where it is made on its sign alone."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Whether the replay is close enough to the recording (paper, section 6)."""

    discrepancy: float
    """Mean recorded step time ÷ simulated step time - 1, its absolute value."""
    limit: float
    """A discrepancy above it withholds the verdict."""
    verdict: bool
    """Whether there is one."""
    reason: str | None
    """Why there is none, in words."""
    adaptations: tuple[MadeAdaptation, ...]
    """Adaptations of the replay to the recording, in the order of their trial."""
    late_launches: tuple[LateOpType, ...]
    """Late launches that the replay does not account for; empty where there is a verdict."""
    replayed: bool = field(default=True, metadata=OMITTED)
    """False where operations cannot be replayed: each rank's step is then one computation, and the
    slowdowns say nothing of stragglers, but `Report.arrivals` and `Report.breakdown` do. No key
    where operations are replayed."""
