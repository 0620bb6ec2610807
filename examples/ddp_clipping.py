"""DistributedDataParallel with clipped gradients, and Paceline in three lines."""

from __future__ import annotations

import torch
from common import HIDDEN, Layer, Options, launch, options
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

import paceline_client.torch as paceline

BATCH = 16


def train(options: Options, rank: int) -> None:
    """Train one of the ranks that have the whole model."""
    layers = nn.Sequential(*(Layer(0.008, options, rank) for _ in range(4)))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters())

    monitor = paceline.attach(
        options.server, options.job, model=model, steps=options.steps, every=options.every
    )
    for _ in range(options.total_steps):
        x = torch.randn(BATCH, HIDDEN)
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        monitor.step()
        options.stepped(monitor, rank)


if __name__ == "__main__":
    launch(train, options("example-ddp-clipping", ranks=2, description=__doc__))
