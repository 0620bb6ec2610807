"""DeepSpeed's engine with ZeRO stage 2, and Paceline in three lines."""

from __future__ import annotations

import os

import deepspeed
import torch
from common import HIDDEN, Layer, Options, launch, options
from torch import nn

import paceline_client.torch as paceline

MICROBATCHES = 2
BATCH = 4


def train(options: Options, rank: int) -> None:
    """Train one of the ranks that share gradients and the optimizer's state."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(options.ranks)}
    model = nn.Sequential(*(Layer(0.006, options, rank) for _ in range(4)))
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "gradient_accumulation_steps": MICROBATCHES,
            "zero_optimization": {"stage": 2},
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": 1.0,
        },
    )

    monitor = paceline.attach(
        options.server, options.job, model=engine, steps=options.steps, every=options.every
    )
    for _ in range(options.total_steps):
        for _ in range(MICROBATCHES):
            x = torch.randn(BATCH, HIDDEN)
            loss = nn.functional.mse_loss(engine(x), x)
            engine.backward(loss)
            engine.step()
        monitor.step()
        options.stepped(monitor, rank)


if __name__ == "__main__":
    launch(train, options("example-deepspeed-zero", ranks=2, description=__doc__))
