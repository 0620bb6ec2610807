"""Megatron-Core's interleaved 1F1B schedule, and Paceline in three lines."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from common import HIDDEN, Layer, Options, launch, options
from torch import nn

with warnings.catch_warnings():
    # It tells what else it would like to have.
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state
    from megatron.core.enums import ModelType
    from megatron.core.model_parallel_config import ModelParallelConfig
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

import paceline_client.torch as paceline

MICROBATCHES = 8
BATCH = 4
STAGES = 2


class Chunk(nn.Module):
    """A model chunk as Megatron's schedules want it: its input is set, not passed."""

    def __init__(
        self, config: ModelParallelConfig, index: int, options: Options, rank: int
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(0.008, options, rank)])
        self.config = config
        self.vp_stage = index
        self.model_type = ModelType.encoder_or_decoder
        self._given = None

    def set_input_tensor(self, tensor) -> None:
        """Take what the stage before has sent."""
        self._given = tensor[0] if isinstance(tensor, list) else tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the chunk's output."""
        x = x if self._given is None else self._given
        for layer in self.layers:
            x = layer(x)
        return x


def train(options: Options, rank: int) -> None:
    """Train a rank of two stages with two chunks each, replicated."""
    without_gpu()
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=STAGES,
        virtual_pipeline_model_parallel_size=2,
        create_gloo_process_groups=False,
    )
    config = ModelParallelConfig(
        pipeline_model_parallel_size=STAGES,
        virtual_pipeline_model_parallel_size=2,
        pipeline_dtype=torch.float32,
        batch_p2p_comm=False,
        overlap_p2p_comm=True,
        deallocate_pipeline_outputs=False,
        barrier_with_L1_time=False,
    )
    # What the schedules read of a transformer's configuration.
    config.hidden_size = HIDDEN
    config.fine_grained_activation_offloading = False
    model = [Chunk(config, index, options, rank) for index in range(2)]
    parameters = [p for chunk in model for p in chunk.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    replicas = parallel_state.get_data_parallel_group()

    monitor = paceline.attach(
        options.server,
        options.job,
        megatron_config=config,
        model=model,
        steps=options.steps,
        every=options.every,
    )
    for _ in range(options.total_steps):
        get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=[iter(())] * len(model),
            model=model,
            num_microbatches=MICROBATCHES,
            seq_length=BATCH,
            micro_batch_size=1,
        )
        with monitor.span("grads-reduce-scatter"):
            for parameter in parameters:
                dist.all_reduce(parameter.grad, group=replicas)
        optimizer.step()
        optimizer.zero_grad()
        monitor.step()
        options.stepped(monitor, rank)


def forward_step(data, model):
    """Run one chunk on one microbatch."""
    del data
    return model(torch.randn(BATCH, 1, HIDDEN)), loss


def loss(output):
    """Return the loss, as Megatron wants it."""
    value = output.square().mean()
    return value, {"loss": value.detach()}


def without_gpu() -> None:
    """Let what Megatron asks of CUDA be answered by the processor."""
    zeros = torch.zeros
    torch.zeros = lambda *size, **how: zeros(
        *size, **{key: value for key, value in how.items() if key != "device"}
    )
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None


if __name__ == "__main__":
    launch(train, options("example-megatron-core", ranks=4, description=__doc__))
