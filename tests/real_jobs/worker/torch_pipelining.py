"""Jobs of `torch.distributed.pipelining`, alone, with FSDP2 and with DDP, and their recorder."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
    schedules,
)
from torch.nn.parallel import DistributedDataParallel

import paceline_client.torch as paceline
from tests.real_jobs.jobs import MICROBATCHES, Job, Place, Schedule, Sharding
from tests.real_jobs.worker.data_parallel import GRADIENTS, PARAMETERS, DataParallel
from tests.real_jobs.worker.model import (
    BACKWARD,
    FORWARD,
    HIDDEN,
    MICROBATCH_SIZE,
    SEQUENCE,
    Chunk,
    Run,
)
from tests.real_jobs.worker.recording import Label
from tests.real_jobs.worker.transfers import Handle, Transfers

_SCHEDULES: Final = {
    Schedule.ONE_F_ONE_B: Schedule1F1B,
    Schedule.INTERLEAVED: ScheduleInterleaved1F1B,
    Schedule.ZB_V: ScheduleZBVZeroBubble,
}


class _Stage(PipelineStage):  # type: ignore[misc]
    """A stage whose computations are recorded, and whose transfers are labeled."""

    def __init__(
        self, submodule: nn.Module, index: int, chunk: int, owner: TorchPipelining
    ) -> None:
        self.chunk = chunk
        self.owner = owner
        super().__init__(submodule, index, **owner.stage_arguments(index))

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with self.owner.run.computing(FORWARD, fwd_chunk_id, self.chunk):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        # The model's first stage has no input gradient: its backward pass is that of the weights.
        split = not kwargs.get("full_backward", True)
        with self._backward(bwd_chunk_id, recorded=not (split and self.is_first)):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with self._backward(bwd_chunk_id, recorded=self.is_first):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)

    def _backward(self, mb: int, *, recorded: bool) -> AbstractContextManager[None]:
        if recorded:
            return self.owner.run.computing(BACKWARD, mb, self.chunk)
        return nullcontext()

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._labelled("forward-recv", fwd_chunk_id, super().get_fwd_recv_ops(fwd_chunk_id))

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._labelled("forward-send", fwd_chunk_id, super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._labelled("backward-recv", bwd_chunk_id, super().get_bwd_recv_ops(bwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._labelled("backward-send", bwd_chunk_id, super().get_bwd_send_ops(bwd_chunk_id))

    def _labelled(self, name: str, mb: int, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        for op in ops:
            op.label = Label(name, mb, self.chunk)
        return ops

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        if self.owner.job.sharding is Sharding.FSDP2:
            with self.owner.run.recorder.timed(GRADIENTS):
                super().perform_reduce_grad(grad_scale_factor)
        else:
            super().perform_reduce_grad(grad_scale_factor)


class _Paced(PipelineStage):  # type: ignore[misc]
    """A stage that gives its model the current microbatch, and records nothing."""

    def __init__(
        self, submodule: nn.Module, index: int, chunk: int, owner: TorchPipelining
    ) -> None:
        del chunk
        self._run = owner.run
        super().__init__(submodule, index, **owner.stage_arguments(index))

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        self._run.microbatch = fwd_chunk_id
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        self._run.microbatch = bwd_chunk_id
        return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        self._run.microbatch = bwd_chunk_id
        return super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)


class TorchPipelining:
    """The job's trainer on one rank.

    Parameters
    ----------
    hooked : bool
        Leave recording to the client's hooks.
    """

    def __init__(
        self, job: Job, run: Run, place: Place, transfers: Transfers, *, hooked: bool = False
    ) -> None:
        self.job = job
        self.run = run
        self._place = place
        self._transfers = transfers
        self._hooked = hooked
        self._mesh = mesh = init_device_mesh("cpu", (job.pp, job.dp), mesh_dim_names=("pp", "dp"))
        self.pipeline_group = mesh["pp"].get_group()
        chunks = [Chunk(run, job.layers, index) for index in range(job.chunks)]
        modules = [self._sharded(chunk, mesh["dp"]) for chunk in chunks]
        kind = _Paced if hooked else _Stage
        stages = [
            kind(module, job.stage(place.pp, index), index, self)
            for index, module in enumerate(modules)
        ]
        schedule = _SCHEDULES[job.schedule]
        given: Any = stages[0] if job.schedule is Schedule.ONE_F_ONE_B else stages
        self._schedule = schedule(given, MICROBATCHES, loss_fn=nn.functional.mse_loss)
        self._first = any(stage.is_first for stage in stages)
        self._last = any(stage.is_last for stage in stages)
        self._data_parallel = DataParallel(job, run, modules, mesh["dp"].get_group())
        if hooked:
            return
        self._post_unlabelled = schedules._batch_p2p
        schedules._batch_p2p = self._post
        if job.sharding is Sharding.FSDP2:
            _record_gathering(run, transfers)

    def stage_arguments(self, index: int) -> dict[str, Any]:
        """Return the arguments of a stage after its module and its index."""
        example = torch.zeros(MICROBATCH_SIZE, SEQUENCE, HIDDEN)
        return {
            "num_stages": self.job.pp * self.job.chunks,
            "device": torch.device("cpu"),
            "input_args": (example.requires_grad_(index > 0),),
            "output_args": (torch.zeros_like(example).requires_grad_(),),
            "group": self.pipeline_group,
        }

    def attach(self, url: str, **how: Any) -> paceline.Monitor:  # noqa: ANN401
        """Let the client record the job."""
        return paceline.attach(url, self.job.name, schedule=self._schedule, mesh=self._mesh, **how)

    def step(self) -> None:
        """Train on a step's microbatches."""
        self._data_parallel.gather_parameters()
        batch = torch.randn(MICROBATCHES * MICROBATCH_SIZE, SEQUENCE, HIDDEN)
        given = (batch,) if self._first else ()
        if self._last:
            self._schedule.step(*given, target=torch.zeros_like(batch), losses=[])
        else:
            self._schedule.step(*given)
        self._data_parallel.reduce_gradients()
        self._data_parallel.update()

    def _sharded(self, chunk: Chunk, mesh: DeviceMesh) -> nn.Module:
        if self.job.sharding is Sharding.FSDP2:
            for block in chunk.blocks:
                fully_shard(block, mesh=mesh)
            return fully_shard(chunk, mesh=mesh)
        if self.job.sharding is Sharding.DDP:
            wrapped = DistributedDataParallel(chunk, process_group=mesh.get_group())
            if self._hooked:
                return wrapped
            # A lambda, because PyTorch refuses annotations that are texts, as all in this module
            # are.
            wrapped.register_comm_hook(
                mesh.get_group(),
                lambda group, bucket: self._recorded_reduction(group, bucket),  # noqa: PLW0108
            )
            return wrapped
        return chunk

    def _recorded_reduction(self, group: Any, bucket: dist.GradBucket) -> torch.futures.Future:  # noqa: ANN401
        """Average a bucket's gradients as DDP does, and record it."""
        recorder = self.run.recorder
        step, start = recorder.step, time.time_ns()
        work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)

        def finish(done: torch.futures.Future) -> torch.Tensor:
            recorder.add(GRADIENTS, start, time.time_ns(), step)
            return done.value()[0] / self.job.dp

        return work.get_future().then(finish)

    def _post(self, ops: list[dist.P2POp], desc: str | None = None) -> list[Handle]:
        """Post transfers like the schedule's own function, and watch each."""
        if not all(hasattr(op, "label") for op in ops):
            # The framework exchanges shapes before the first step.
            unlabelled: list[Handle] = self._post_unlabelled(ops, desc)
            return unlabelled
        return [
            self._transfers.post(
                self.run.recorder,
                op.label,
                op.tensor,
                send=op.op is dist.isend,
                peer=op.peer,
                group=op.group,
                wire_s=self.run.pace.wire_s(min(op.peer // self.job.dp, self._place.pp)),
            )
            for op in ops
        ]


def _record_gathering(run: Run, transfers: Transfers) -> None:
    """Record each all-gather of FSDP2 from its start to its own end."""
    unshard = FSDPParamGroup.unshard

    def recorded(group: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        idle = group._all_gather_result is None
        recorder = run.recorder
        step, start = recorder.step, time.time_ns()
        unshard(group, *args, **kwargs)
        result = group._all_gather_result
        if not idle or result is None:
            return  # under way already, or nothing to gather
        if result.all_gather_work is None:
            recorder.add(PARAMETERS, start, time.time_ns(), step)
        else:
            transfers.watch(recorder, PARAMETERS, result.all_gather_work.wait, step, start)

    FSDPParamGroup.unshard = recorded
