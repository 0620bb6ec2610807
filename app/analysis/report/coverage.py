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
    """Operations that the recorder lost and that were re-created from neighboring operations."""

    operations: int
    """Number of re-created operations."""
    by_optype: dict[str, int]
    """Number of re-created operations by operation type; types without any have no key."""
    by_worker: CountByCell
    """Number of re-created operations on each worker, [dp][pp]."""


@dataclass(frozen=True, slots=True)
class ChunkProducer:
    """Counts of the chunks that a producer sent."""

    producer: str
    """Name of the producer."""
    chunks: int
    """Number of chunks that the producer sent."""
    operations: int
    """Number of operations that the producer sent."""


@dataclass(frozen=True, slots=True)
class EndedEarly:
    """A producer that sent no last chunk, such as a process that was killed."""

    producer: str
    """Name of the producer."""
    last_step: int | None
    """Last step that the producer sent; None if it sent no step."""

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
    """Name of the producer that sent the chunk."""
    chunk: int
    """Number of the chunk."""
    operations: int
    """Number of the chunk's operations that had been received before and were dropped."""


@dataclass(frozen=True, slots=True)
class DroppedOperations:
    """Operations that were received twice."""

    operations: int
    """Number of dropped operations."""
    chunks: tuple[RepeatedChunk, ...]
    """Chunks that contained the dropped operations."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of a session, accepted and refused."""

    chunks: int
    """Number of accepted chunks."""
    producers: tuple[ChunkProducer, ...]
    """Producers of the chunks, by name."""
    sealed_by: Literal["request", "final", "silence"]
    """Event that ended the session: a request, the last producer's last chunk, or silence of all
    producers.
    """
    refused_chunks: int
    """Number of refused chunks."""
    refused_bytes: int
    """Size of the refused chunks, bytes."""
    dropped: DroppedOperations
    """Operations that were received twice."""
    ended_early: tuple[EndedEarly, ...] = field(default=(), metadata=OMITTED)
    """Producers whose recording ended before the session did; no key where there are none."""


@dataclass(frozen=True, slots=True)
class MissingWorker:
    """A worker that recorded nothing: the replay has a typical worker in its place."""

    worker: Worker
    """Place of the worker: (DP rank, stage)."""
    rank: int
    """Global rank of the worker, inferred from the numbers of the other ranks."""
    awaited_s: float | None
    """Time of a mean step that the other DP ranks of the worker's stage spend together in
    collectives, seconds: transfers, and waiting for this worker where it came last. None if no
    collective is recorded.
    """
    came_last: tuple[int, ...]
    """Steps in which a collective of the worker's stage took far longer than in most steps, so that
    the worker came last.
    """


@dataclass(frozen=True, slots=True)
class Coverage:
    """The part of the session that was received, repaired or excluded."""

    ranks_expected: int
    """Number of workers of the job."""
    ranks_present: int
    """Number of workers that were recorded."""
    operations: int
    """Number of operations of the trace."""
    operations_replayed: int
    """Number of operations that the replay runs, including re-created operations."""
    recreated: Recreated
    """Operations that were re-created."""
    unknown_op_types: dict[str, int]
    """Number of operations of unknown types, by type. Collectives within a worker, and of ranks
    that share experts, are not replayed, but the diagnosis uses them.
    """
    unanswered: dict[str, int]
    """Number of excluded sends without a receive, by operation type."""
    absent_op_types: tuple[str, ...]
    """Operation types that the replay supports and the trace lacks."""
    clamped_transfers: int
    """Number of transfers whose computed duration was below -10 ms and counts as 0."""
    clamped_launch_delays: int
    """Number of launch delays of at most -10 ms, which count as 0."""
    chunks: Chunks | None = field(default=None, metadata=OMITTED)
    """Chunks of the session; no key if it was sent in one body."""
    copies: int = field(default=0, metadata=OMITTED)
    """Number of operations that were recorded twice and dropped once; no key if there are none.
    Operations that were sent in two chunks are counted in `chunks`.
    """
    impossible_durations: tuple[ImpossibleDuration, ...] = field(default=(), metadata=OMITTED)
    """Operations that cannot have taken as long as recorded, because operations that wait for them
    on the same rank began long before their end. They count with their usual duration; no key if
    there are none.
    """
    missing: tuple[MissingWorker, ...] = field(default=(), metadata=OMITTED)
    """Workers that recorded nothing; no key if all workers were recorded."""
    unmapped: tuple[Unmapped, ...] = field(default=(), metadata=OMITTED)
    """Parts of another program's recording that are not operations; no key if there are none."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Differences between the clocks of the ranks."""

    aligned: bool
    """Whether starts were shifted by the offsets before the replay."""
    absolute: bool
    """Whether starts are readings of host clocks; otherwise they count from the start of each step.
    """
    offsets_ns: ByCell
    """Time by which each worker's clock is ahead of the common clock, ns, [dp][pp]."""
    residual_ns: ByCell
    """Remaining difference of simultaneous ends after alignment, ns, [dp][pp]."""
    drift_ppm: ByCell | None
    """Drift of each worker's clock, parts per million, [dp][pp]; None if starts count from each
    step.
    """
    unconnected: tuple[Worker, ...]
    """A worker of each group of ranks that no recorded communication connects with the other ranks:
    (DP rank, stage).
    """
    warnings: tuple[str, ...]
    """Warnings about clocks, as sentences."""
    settings: tuple[ClockStep, ...] = field(default=(), metadata=OMITTED)
    """Clocks that were set between two steps; starts are corrected as if they had not been set. No
    key if there are none.
    """


@dataclass(frozen=True, slots=True)
class LateWorker:
    """A worker that launches operations late."""

    worker: Worker
    """Place of the worker: (DP rank, stage)."""
    share: float
    """Time that this worker's late launches alone add to a step, as a share of the recorded step
    time.
    """


@dataclass(frozen=True, slots=True)
class LateOpType:
    """An operation type that is launched late."""

    op_type: str
    """Name of the operation type."""
    share: float
    """Time that late launches of this type add to a step, as a share of the recorded step time."""
    workers: tuple[LateWorker, ...]
    """Workers whose late launches of this type add most, the latest worker first."""


@dataclass(frozen=True, slots=True)
class MadeAdaptation:
    """Deviation of the replay from the paper's dependency model, by which it follows this job."""

    adaptation: str
    """Name of the adaptation, such as ``blocking_transfers``."""
    sentence: str
    """Behavior of the job that the adaptation models, as a sentence."""
    where: tuple[str, ...]
    """Operation types and stages, links or microbatches that the adaptation concerns."""
    confidence: float
    """Share of the examined cases that show the behavior, 0 to 1."""
    discrepancy_before: float | None
    """Discrepancy of the replay without the adaptation; None if its sign alone is enough to make
    it.
    """
    discrepancy_after: float | None
    """Discrepancy of the replay with the adaptation; None if its sign alone is enough to make it.
    """


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Whether the replay is close enough to the recording (paper, section 6)."""

    discrepancy: float
    """|mean recorded step time ÷ mean simulated step time - 1|."""
    limit: float
    """Discrepancy above which the verdict is withheld."""
    verdict: bool
    """Whether the report has a verdict."""
    reason: str | None
    """Reason why the verdict is withheld, in words; None if it is not."""
    adaptations: tuple[MadeAdaptation, ...]
    """Adaptations of the replay to the recording, in the order of their trial."""
    late_launches: tuple[LateOpType, ...]
    """Late launches that the replay does not reproduce; empty if the report has a verdict."""
    replayed: bool = field(default=True, metadata=OMITTED)
    """False if operations cannot be replayed. Then each rank's step is one computation, and the
    slowdowns say nothing of stragglers, but `Report.arrivals` and `Report.breakdown` do. No key
    if operations are replayed.
    """
