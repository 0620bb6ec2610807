"""The parts of a step outside its pipeline: collectives of a stage's ranks, the optimizer."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from tests.real_jobs.jobs import Job, Sharding
from tests.real_jobs.worker.model import Run
from tests.real_jobs.worker.recording import Label

PARAMETERS: Final = Label("params-all-gather")
GRADIENTS: Final = Label("grads-reduce-scatter")
_CLIP: Final = Label("optimizer-clip-main-grad")
_OPTIMIZER: Final = Label("optimizer")
_LEARNING_RATE: Final = 1e-3


class DataParallel:
    """The synchronization of a stage's data-parallel ranks, unless the framework does it.

    Parameters
    ----------
    group
        The process group of the stage's data-parallel ranks.
    """

    def __init__(self, job: Job, run: Run, chunks: list[nn.Module], group: Any) -> None:  # noqa: ANN401
        self._job = job
        self._run = run
        self._group = group
        self._parameters = [p for chunk in chunks for p in chunk.parameters()]
        self._optimizer = torch.optim.SGD(self._parameters, lr=_LEARNING_RATE)
        self._norm = torch.zeros(1)

    def gather_parameters(self) -> None:
        """All-gather the parameters, as a distributed optimizer does before a step."""
        if self._job.sharding is not Sharding.NONE:
            return
        with self._run.recorder.timed(PARAMETERS):
            flat = torch.cat([p.detach().flatten() for p in self._parameters])
            share = flat.chunk(self._job.dp)[0].contiguous()
            gathered = [torch.empty_like(share) for _ in range(self._job.dp)]
            dist.all_gather(gathered, share, group=self._group)

    def reduce_gradients(self) -> None:
        """Average the gradients over the data-parallel ranks."""
        if self._job.sharding is not Sharding.NONE:
            return
        with self._run.recorder.timed(GRADIENTS):
            gradients = [p.grad for p in self._parameters if p.grad is not None]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat, group=self._group)
            flat /= self._job.dp
            for gradient, mean in zip(
                gradients, flat.split([g.numel() for g in gradients]), strict=True
            ):
                gradient.copy_(mean.view_as(gradient))

    def update(self) -> None:
        """Update the parameters, after clipping the gradients over all ranks if the job does so."""
        recorder = self._run.recorder
        if self._job.ends_in_barrier:
            with recorder.timed(_CLIP):
                dist.all_reduce(self._norm.zero_())
        with recorder.timed(_OPTIMIZER):
            self._optimizer.step()
            self._optimizer.zero_grad()
