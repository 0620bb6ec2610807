"""Which GPU is at fault: the host, the GPU and the rank of what a cause blames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.analysis.diagnosis.places import Where, Worker
    from app.analysis.report.document import Report


@dataclass(frozen=True, slots=True)
class BlamedGpu:
    """A GPU at fault; or a worker of several, of which one is traced.

    Examples
    --------
    >>> BlamedGpu(35, "node-4", "3").words
    'node-4 GPU 3 (rank 35)'
    >>> BlamedGpu(80, "node-10", "0", one_of=8).words
    'node-10: one of 8 GPUs (only rank 80 is traced)'
    """

    rank: int
    """Global rank: of the GPU at fault, or the traced one of its worker."""
    host: str | None
    """Of that rank, where it is known."""
    gpu: str | None
    """As the metadata name it, where they do."""
    one_of: int = 1
    """GPUs of the worker that may be at fault; 1 where it is this one."""

    @property
    def gpu_words(self) -> str:
        """Return what is known of the GPU."""
        if self.one_of > 1:
            return f"one of {self.one_of} GPUs"
        if self.gpu is None:
            return ""
        return f"GPU {self.gpu}" if self.gpu.isdecimal() else self.gpu

    @property
    def rank_words(self) -> str:
        """Return the rank, and that it is one of several where it is."""
        return f"only rank {self.rank} is traced" if self.one_of > 1 else f"rank {self.rank}"

    @property
    def words(self) -> str:
        """Return host, GPU and rank, as far as they are known."""
        joint = ": " if self.one_of > 1 else " "
        where = joint.join(filter(None, (self.host, self.gpu_words)))
        return f"{where} ({self.rank_words})" if where else self.rank_words


def blamed_gpus(report: Report, where: Where) -> tuple[BlamedGpu, ...]:
    """Return the GPUs of a cause's workers, the worst first; nothing where it blames none."""
    if where.ranks:
        return tuple(_gpu(report, rank, 1) for rank in where.ranks)
    one_of = gpus_of_worker(report)
    return tuple(_gpu(report, report.rank_of(worker), one_of) for worker in where.workers)


def gpus_of_worker(report: Report) -> int:
    """Return how many GPUs a worker has: its tensor- and context-parallel ranks."""
    return report.sizes.tp * report.sizes.cp


class GpuOfWorker:
    """Names the GPU of each worker: that at fault, or which of its GPUs is traced."""

    def __init__(self, report: Report) -> None:
        self._report, self._one_of = report, gpus_of_worker(report)
        self._at_fault = {
            worker: rank
            for cause in reversed(report.causes)
            for worker, rank in zip(cause.where.workers, cause.where.ranks, strict=False)
        }

    def __call__(self, worker: Worker) -> BlamedGpu:
        """Return the GPU of a worker."""
        rank = self._at_fault.get(worker)
        if rank is not None:
            return _gpu(self._report, rank, 1)
        return _gpu(self._report, self._report.rank_of(worker), self._one_of)


def _gpu(report: Report, rank: int, one_of: int) -> BlamedGpu:
    return BlamedGpu(rank, report.hosts.get(rank), report.gpus.get(rank), one_of)
