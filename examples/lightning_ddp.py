"""PyTorch Lightning with data parallelism, and Paceline in a callback of three lines."""

from __future__ import annotations

import torch
from common import HIDDEN, Layer, Options, launch, options
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline_client.torch as paceline

MICROBATCHES = 4
BATCH = 4


class Paceline(Callback):
    """Records the job; for any Lightning module, with whatever strategy."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def on_train_start(self, trainer, _module) -> None:
        """Attach once model, optimizer and process group are there."""
        options, model = self.options, trainer.strategy.model
        self.monitor = paceline.attach(
            options.server, options.job, model=model, steps=options.steps, every=options.every
        )

    def on_train_batch_end(self, trainer, _module, _outputs, _batch, batch_idx) -> None:
        """End a step where the optimizer has made one."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.monitor.step()
            self.options.stepped(self.monitor, trainer.global_rank)


class Module(LightningModule):
    """Three layers, slower on a rank that is slowed."""

    def __init__(self, options: Options, rank: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(0.008, options, rank) for _ in range(3))

    def training_step(self, batch, _index):
        """Return the loss of a microbatch."""
        (x,) = batch
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters())


def train(options: Options, rank: int) -> None:
    """Train one of the ranks that have the whole model."""
    steps = options.total_steps
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=options.ranks,
        max_epochs=1,
        accumulate_grad_batches=MICROBATCHES,
        callbacks=[Paceline(options)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = TensorDataset(torch.randn(options.ranks * steps * MICROBATCHES * BATCH, HIDDEN))
    trainer.fit(Module(options, rank), DataLoader(data, BATCH))


if __name__ == "__main__":
    launch(train, options("example-lightning", ranks=4, description=__doc__))
