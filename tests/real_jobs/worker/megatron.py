"""Jobs of megatron-core's schedules, recorded by its timers."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Final

import torch
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.pipeline_parallel import p2p_communication
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from torch import nn

import paceline_client.torch as paceline
from tests.real_jobs.jobs import MICROBATCHES, Job, Place, Posting
from tests.real_jobs.worker.data_parallel import DataParallel
from tests.real_jobs.worker.model import (
    BACKWARD,
    FORWARD,
    HIDDEN,
    MICROBATCH_SIZE,
    SEQUENCE,
    Chunk,
    Run,
    microbatch_input,
)
from tests.real_jobs.worker.recording import Label
from tests.real_jobs.worker.transfers import Transfers

_OF_REQUEST: Final = {
    "send_next": "forward-send",
    "recv_prev": "forward-recv",
    "send_prev": "backward-send",
    "recv_next": "backward-recv",
}


class _Timer:
    """A timer for Megatron that records its interval when it stops."""

    def __init__(self, name: str, owner: Megatron) -> None:
        self._name = name
        self._owner = owner
        self._start_ns = 0

    def start(self, *, barrier: bool = False) -> None:
        del barrier
        self._start_ns = time.time_ns()

    def stop(self) -> None:
        end_ns, recorder = time.time_ns(), self._owner.run.recorder
        label = self._owner.label(self._name)
        if label is not None:
            recorder.add(label, self._start_ns, end_ns, recorder.step)


class _Timers:
    """A replacement of `megatron.core.timers.Timers`: called with a name, it returns a timer."""

    def __init__(self, owner: Megatron) -> None:
        self._owner = owner
        self._timers: dict[str, _Timer] = {}

    def __call__(self, name: str, log_level: int | None = None) -> _Timer:
        del log_level
        if name not in self._timers:
            self._timers[name] = _Timer(name, self._owner)
        return self._timers[name]


class _ToldBackward(torch.autograd.Function):  # type: ignore[misc]
    """Marks, when a backward pass begins, its microbatch and its chunk."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, owner: Megatron, mb: int, mc: int) -> torch.Tensor:  # noqa: ANN401
        ctx.owner, ctx.mb, ctx.mc = owner, mb, mc
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # noqa: ANN401
        ctx.owner.computes(ctx.mb, ctx.mc)
        return gradient, None, None, None


class _Stage(nn.Module):  # type: ignore[misc]
    """A chunk with the interface of Megatron's schedules: its input is set, not passed."""

    def __init__(
        self, chunk: Chunk, config: ModelParallelConfig, index: int, *, first: bool
    ) -> None:
        super().__init__()
        self.chunk = chunk
        self.config = config
        self.vp_stage = index
        self.model_type = ModelType.encoder_or_decoder
        self._first = first
        self._input: torch.Tensor | None = None

    def set_input_tensor(self, tensor: list[torch.Tensor | None] | torch.Tensor | None) -> None:
        self._input = tensor[0] if isinstance(tensor, list) else tensor

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.chunk(given if self._first or self._input is None else self._input)


class Megatron:
    """The job's trainer on one rank.

    Parameters
    ----------
    hooked : bool
        Leave recording to the client's hooks.
    """

    def __init__(
        self, job: Job, run: Run, place: Place, transfers: Transfers, *, hooked: bool = False
    ) -> None:
        self._job = job
        self.run = run
        self._transfers = transfers
        self._overlaps = job.posting is Posting.OVERLAPPED
        _without_gpu()
        virtual = job.chunks if job.chunks > 1 else None
        parallel_state.initialize_model_parallel(
            pipeline_model_parallel_size=job.pp,
            virtual_pipeline_model_parallel_size=virtual,
            create_gloo_process_groups=False,
        )
        self._config = ModelParallelConfig(
            pipeline_model_parallel_size=job.pp,
            virtual_pipeline_model_parallel_size=virtual,
            pipeline_dtype=torch.float32,
            batch_p2p_comm=False,
            overlap_p2p_comm=self._overlaps,
            deallocate_pipeline_outputs=False,
            timers=None if hooked else _Timers(self),
            barrier_with_L1_time=False,
        )
        # The fields of a transformer's configuration that the schedules read.
        self._config.hidden_size = HIDDEN
        self._config.fine_grained_activation_offloading = False
        self._stages = [
            _Stage(
                Chunk(run, job.layers, index),
                self._config,
                index,
                first=place.pp == 0 and index == 0,
            )
            for index in range(job.chunks)
        ]
        self._data_parallel = DataParallel(
            job, run, list(self._stages), parallel_state.get_data_parallel_group()
        )
        self._forwards: Counter[int] = Counter()
        self._chunk = 0
        if self._overlaps and not hooked:
            self._watch_requests()

    def attach(self, url: str, **how: Any) -> paceline.Monitor:  # noqa: ANN401
        """Let the client record the job."""
        return paceline.attach(
            url, self._job.name, model=self._stages, megatron_config=self._config, **how
        )

    def step(self) -> None:
        """Train on a step's microbatches."""
        self._forwards.clear()
        several = self._job.chunks > 1
        get_forward_backward_func()(
            forward_step_func=self._forward_step,
            data_iterator=[iter(())] * self._job.chunks,
            model=self._stages if several else self._stages[0],
            num_microbatches=MICROBATCHES,
            seq_length=SEQUENCE,
            micro_batch_size=MICROBATCH_SIZE,
        )
        self._data_parallel.reduce_gradients()
        self._data_parallel.update()

    def computes(self, microbatch: int, chunk: int) -> None:
        """Store the current computation."""
        self.run.microbatch = microbatch
        self._chunk = chunk

    def label(self, timer: str) -> Label | None:
        """Return the label of a timer's interval; None if its transfers are watched themselves."""
        if timer in {FORWARD, BACKWARD}:
            if self._job.chunks == 1:
                return Label(timer)
            return Label(timer, self.run.microbatch, self._chunk)
        if self._overlaps and timer != "forward-backward":
            return None
        return Label(timer)

    def _forward_step(self, data: Any, model: _Stage) -> tuple[torch.Tensor, Any]:  # noqa: ANN401
        del data
        chunk = model.vp_stage
        microbatch = self._forwards[chunk]
        self._forwards[chunk] += 1
        self.computes(microbatch, chunk)
        output = _ToldBackward.apply(model(microbatch_input()), self, microbatch, chunk)
        return output, _loss

    def _watch_requests(self) -> None:
        """Record each transfer of an overlapped call from its posting to its own end."""
        post = p2p_communication._p2p_ops

        def watched(**tensors: Any) -> dict[str, Any]:  # noqa: ANN401
            recorder = self.run.recorder
            step, start = recorder.step, time.time_ns()
            return {
                name: self._transfers.watch(
                    recorder, Label(_OF_REQUEST[name]), request.wait, step, start
                )
                for name, request in post(**tensors).items()
            }

        p2p_communication._p2p_ops = watched


def _loss(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = output.square().mean()
    return loss, {"loss": loss.detach()}


def _without_gpu() -> None:
    """Replace Megatron's calls of CUDA by calls on the processor."""
    zeros = torch.zeros

    def zeros_here(*size: Any, **options: Any) -> torch.Tensor:  # noqa: ANN401
        return zeros(*size, **{key: v for key, v in options.items() if key != "device"})

    torch.zeros = zeros_here
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
