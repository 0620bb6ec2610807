"""A small model, whose steps take some milliseconds, and Paceline in three lines."""

from __future__ import annotations

import torch
from common import HIDDEN, Layer, Options, launch, options
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline_client.torch as paceline

BATCH = 16


def train(options: Options, rank: int) -> None:
    """Train one of the ranks that have the whole model."""
    layers = nn.Sequential(*(Layer(0.0012, options, rank) for _ in range(3)))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    monitor = paceline.attach(
        options.server, options.job, model=model, steps=options.steps, every=options.every
    )
    for _ in range(options.total_steps):
        x = torch.randn(BATCH, HIDDEN)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()
        monitor.step()
        options.stepped(monitor, rank)


if __name__ == "__main__":
    # A session begins a second after the first steps at the earliest.
    launch(train, options("example-short-steps", ranks=2, description=__doc__, wait_steps=150))
