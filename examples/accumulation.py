"""A loop that accumulates and reduces gradients itself, and Paceline in three lines."""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import HIDDEN, Layer, Options, launch, options
from torch import nn

import paceline_client.torch as paceline

MICROBATCHES = 4
BATCH = 8


def train(options: Options, rank: int) -> None:
    """Train one of the ranks that have the whole model."""
    model = nn.Sequential(*(Layer(0.005, options, rank) for _ in range(3)))
    optimizer = torch.optim.AdamW(model.parameters())

    monitor = paceline.attach(
        options.server, options.job, model=model, steps=options.steps, every=options.every
    )
    for _ in range(options.total_steps):
        optimizer.zero_grad()
        for _ in range(MICROBATCHES):
            x = torch.randn(BATCH, HIDDEN)
            loss = nn.functional.mse_loss(model(x), x) / MICROBATCHES
            loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        monitor.step()
        options.stepped(monitor, rank)


if __name__ == "__main__":
    launch(train, options("example-accumulation", ranks=2, description=__doc__))
