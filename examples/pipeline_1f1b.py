"""Pipeline parallelism alone: 1F1B over as many stages as ranks, and Paceline in three lines."""

from __future__ import annotations

import torch
from common import HIDDEN, Layer, Options, launch, options
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import paceline_client.torch as paceline

MICROBATCHES = 8
BATCH = 4


def train(options: Options, rank: int) -> None:
    """Train the stage of a rank."""
    part = nn.Sequential(*(Layer(0.008, options, rank) for _ in range(2)))
    stage = PipelineStage(part, rank, options.ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(part.parameters())

    monitor = paceline.attach(
        options.server, options.job, schedule=schedule, steps=options.steps, every=options.every
    )
    for _ in range(options.total_steps):
        batch = torch.randn(MICROBATCHES * BATCH, HIDDEN)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(batch)
        elif rank == options.ranks - 1:
            schedule.step(target=batch)
        else:
            schedule.step()
        optimizer.step()
        monitor.step()
        options.stepped(monitor, rank)


if __name__ == "__main__":
    launch(train, options("example-pipeline-1f1b", ranks=4, description=__doc__))
