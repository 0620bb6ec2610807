"""Hugging Face's Trainer with data parallelism, and Paceline in a callback of three lines."""

from __future__ import annotations

import os
import tempfile

import torch
from common import HIDDEN, Layer, Options, launch, options
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import paceline_client.torch as paceline

MICROBATCHES = 2
BATCH = 4


class Paceline(TrainerCallback):
    """Records the job, whatever model and however it is distributed."""

    def __init__(self, options: Options, rank: int) -> None:
        self.options = options
        self.rank = rank

    def on_train_begin(self, _args, _state, _control, model=None, **_others) -> None:
        """Attach once the model and the process group are there."""
        options = self.options
        self.monitor = paceline.attach(
            options.server, options.job, model=model, steps=options.steps, every=options.every
        )

    def on_step_end(self, _args, _state, _control, **_others) -> None:
        """End a step of the optimizer."""
        self.monitor.step()
        self.options.stepped(self.monitor, self.rank)


class Model(nn.Module):
    """Layers, and the loss where the Trainer looks for it."""

    def __init__(self, options: Options, rank: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(0.006, options, rank) for _ in range(4))

    def forward(self, inputs, labels):
        """Return the loss of a microbatch."""
        x = inputs
        for layer in self.layers:
            x = layer(x)
        return {"loss": nn.functional.mse_loss(x, labels)}


def train(options: Options, rank: int) -> None:
    """Train one of the ranks that have the whole model."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(options.ranks)}
    rows = [torch.randn(HIDDEN) for _ in range(options.ranks * BATCH * MICROBATCHES)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            ddp_backend="gloo",
            max_steps=options.total_steps,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=MICROBATCHES,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=Model(options, rank),
            args=arguments,
            train_dataset=[{"inputs": row, "labels": row} for row in rows],
            callbacks=[Paceline(options, rank)],
        )
        trainer.train()


if __name__ == "__main__":
    launch(train, options("example-hugging-face", ranks=2, description=__doc__))
