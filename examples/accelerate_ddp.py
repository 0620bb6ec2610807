"""Hugging Face Accelerate with data parallelism, and Paceline in three lines."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from common import HIDDEN, Layer, Options, launch, options
from torch import nn

import paceline_client.torch as paceline

MICROBATCHES = 4
BATCH = 4


def train(options: Options, rank: int) -> None:
    """Train one of the ranks that have the whole model."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICROBATCHES)
    model = nn.Sequential(*(Layer(0.008, options, rank) for _ in range(3)))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))

    monitor = paceline.attach(
        options.server, options.job, model=model, steps=options.steps, every=options.every
    )
    for _ in range(options.total_steps):
        for _ in range(MICROBATCHES):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.randn(BATCH, HIDDEN)).square().mean())
                optimizer.step()
                optimizer.zero_grad()
        monitor.step()
        options.stepped(monitor, rank)


if __name__ == "__main__":
    launch(train, options("example-accelerate", ranks=4, description=__doc__))
