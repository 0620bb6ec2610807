"""Parts of a report: what arrived of a session, and how far it may be believed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from app.analysis.diagnosis.places import Worker
from app.analysis.json_text import OMITTED
from app.analysis.report.shapes import ByCell, CountByCell
from app.analysis.trace.unmapped import Unmapped


@dataclass(frozen=True, slots=True)
class Recreated:
    """Operations that the recorder lost and that were put back from their neighbors.

    Parameters
    ----------
    operations : int
        How many.
    by_optype : mapping of str to int
        How many of each operation type; those without any have no key.
    by_worker : tuple of tuple of int
        How many on each worker, [dp][pp].
    """

    operations: int
    by_optype: dict[str, int]
    by_worker: CountByCell


@dataclass(frozen=True, slots=True)
class ChunkProducer:
    """What one producer sent.

    Parameters
    ----------
    producer : str
        Its name.
    chunks, operations : int
        How many of each it sent.
    """

    producer: str
    chunks: int
    operations: int


@dataclass(frozen=True, slots=True)
class RepeatedChunk:
    """A chunk of which operations were sent twice.

    Parameters
    ----------
    producer : str
        Who sent it.
    chunk : int
        Its number.
    operations : int
        Operations of it that had come before and were dropped.
    """

    producer: str
    chunk: int
    operations: int


@dataclass(frozen=True, slots=True)
class DroppedOperations:
    """Operations that came twice.

    Parameters
    ----------
    operations : int
        How many were dropped.
    chunks : tuple of RepeatedChunk
        The chunks that they came in.
    """

    operations: int
    chunks: tuple[RepeatedChunk, ...]


@dataclass(frozen=True, slots=True)
class Chunks:
    """How a session came in chunks.

    Parameters
    ----------
    chunks : int
        How many were taken.
    producers : tuple of ChunkProducer
        By name.
    sealed_by : ``request``, ``final`` or ``silence``
        What ended the session: a request, the last producer's last chunk, or that no more came.
    refused_chunks : int
        How many were not taken.
    refused_bytes : int
        Their size.
    dropped : DroppedOperations
        What came twice.
    """

    chunks: int
    producers: tuple[ChunkProducer, ...]
    sealed_by: Literal["request", "final", "silence"]
    refused_chunks: int
    refused_bytes: int
    dropped: DroppedOperations


@dataclass(frozen=True, slots=True)
class Coverage:
    """What arrived, what was repaired and what was left out.

    Parameters
    ----------
    ranks_expected, ranks_present : int
        Workers of the job, and those that were recorded; they are equal where there is a report.
    operations : int
        Operations of the trace.
    operations_replayed : int
        Operations that the replay runs, re-created ones included.
    recreated : Recreated
        Operations that were put back.
    unknown_op_types : mapping of str to int
        Operations of types that nothing is done with, by type. Collectives within a worker, and of
        ranks that share experts, are not replayed, but the diagnosis reads them.
    unanswered : mapping of str to int
        Sends without receives that were left out, by operation type.
    absent_op_types : tuple of str
        Types that the replay knows and of which the trace has none.
    clamped_transfers : int
        Transfers whose duration came out below -10 ms and counts as 0.
    clamped_launch_delays : int
        Launch delays of -10 ms or below, which count as 0.
    chunks : Chunks, optional
        How it came in chunks; no key where it came in one body.
    unmapped : tuple of Unmapped
        What the recording of another program holds that is no operation; no key where there is
        nothing.
    """

    ranks_expected: int
    ranks_present: int
    operations: int
    operations_replayed: int
    recreated: Recreated
    unknown_op_types: dict[str, int]
    unanswered: dict[str, int]
    absent_op_types: tuple[str, ...]
    clamped_transfers: int
    clamped_launch_delays: int
    chunks: Chunks | None = field(default=None, metadata=OMITTED)
    unmapped: tuple[Unmapped, ...] = field(default=(), metadata=OMITTED)


@dataclass(frozen=True, slots=True)
class Clocks:
    """How far the clocks of the ranks are apart.

    Parameters
    ----------
    aligned : bool
        Whether starts were shifted by the offsets before the replay.
    absolute : bool
        Whether starts are readings of host clocks; if not, they count from each step.
    offsets_ns : tuple of tuple of float
        How far each worker's clock is ahead of the common one, ns, [dp][pp].
    residual_ns : tuple of tuple of float
        How far ends that belong together are still apart, ns, [dp][pp].
    drift_ppm : tuple of tuple of float, or None
        How fast each clock runs away, parts in a million, [dp][pp]; None where starts count from
        each step.
    unconnected : tuple of (DP rank, stage)
        One worker of each group of ranks that no recorded communication connects with the rest.
    warnings : tuple of str
        Sentences.
    """

    aligned: bool
    absolute: bool
    offsets_ns: ByCell
    residual_ns: ByCell
    drift_ppm: ByCell | None
    unconnected: tuple[Worker, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LateWorker:
    """A worker that launches operations late.

    Parameters
    ----------
    worker : (DP rank, stage)
        Its place.
    share : float
        What its late launches alone add to a step, as a share of the recorded step time.
    """

    worker: Worker
    share: float


@dataclass(frozen=True, slots=True)
class LateOpType:
    """An operation type that is launched late.

    Parameters
    ----------
    op_type : str
        Its name.
    share : float
        What its late launches add to a step, as a share of the recorded step time.
    workers : tuple of LateWorker
        Those that do so most, the latest first.
    """

    op_type: str
    share: float
    workers: tuple[LateWorker, ...]


@dataclass(frozen=True, slots=True)
class MadeAdaptation:
    """A way in which the replay follows this job instead of the paper's dependency model.

    Parameters
    ----------
    adaptation : str
        Its name, such as ``blocking_transfers``.
    sentence : str
        What the job does, in words.
    where : tuple of str
        Where in the job: op types and stages, links, microbatches.
    confidence : float
        Share of the cases looked at that show it, 0 to 1.
    discrepancy_before, discrepancy_after : float or None
        Without it and with it; None where it is made on its sign alone.
    """

    adaptation: str
    sentence: str
    where: tuple[str, ...]
    confidence: float
    discrepancy_before: float | None
    discrepancy_after: float | None


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Whether the replay is near enough to the recording (paper, section 6).

    Parameters
    ----------
    discrepancy : float
        Mean recorded step time ÷ simulated step time - 1, its absolute value.
    limit : float
        A discrepancy above it withholds the verdict.
    verdict : bool
        Whether there is one.
    reason : str or None
        Why there is none, in words.
    adaptations : tuple of MadeAdaptation
        How the replay was adapted to what the recording shows, in the order of their trial.
    late_launches : tuple of LateOpType
        Where the time went that the replay does not account for; empty where there is a verdict.
    """

    discrepancy: float
    limit: float
    verdict: bool
    reason: str | None
    adaptations: tuple[MadeAdaptation, ...]
    late_launches: tuple[LateOpType, ...]
