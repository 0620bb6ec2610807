"""Pipeline and data parallelism with torch.distributed.pipelining, and Paceline in three lines."""

from __future__ import annotations

import torch
from common import HIDDEN, Layer, Options, launch, options
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

import paceline_client.torch as paceline

MICROBATCHES = 8
BATCH = 4


def train(options: Options, rank: int) -> None:
    """Train a rank of a pipeline of two stages, replicated."""
    mesh = init_device_mesh("cpu", (2, options.ranks // 2), mesh_dim_names=("pp", "dp"))
    stage_index = mesh.get_local_rank("pp")
    part = nn.Sequential(*(Layer(0.008, options, rank) for _ in range(2)))
    model = DistributedDataParallel(part, process_group=mesh.get_group("dp"))
    example = torch.zeros(BATCH, HIDDEN)
    stage = PipelineStage(
        model,
        stage_index,
        2,
        torch.device("cpu"),
        input_args=(example.requires_grad_(stage_index > 0),),
        output_args=(torch.zeros_like(example).requires_grad_(),),
        group=mesh.get_group("pp"),
    )
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(model.parameters())

    monitor = paceline.attach(
        options.server,
        options.job,
        schedule=schedule,
        mesh=mesh,
        steps=options.steps,
        every=options.every,
        layers=(2, 2),
    )
    for _ in range(options.total_steps):
        batch = torch.randn(MICROBATCHES * BATCH, HIDDEN)
        if stage_index == 0:
            schedule.step(batch)
        else:
            schedule.step(target=torch.zeros_like(batch))
        optimizer.step()
        optimizer.zero_grad()
        monitor.step()
        options.stepped(monitor, rank)


if __name__ == "__main__":
    launch(train, options("example-torch-pipelining", ranks=4, description=__doc__))
