"""Sharded data parallelism (FSDP2) over microbatches, and Paceline in three lines."""

from __future__ import annotations

import torch
from common import HIDDEN, WAIT_STEPS, Layer, Options, launch, options
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import paceline_client.torch as paceline

MICROBATCHES = 4
BATCH = 4


def train(options: Options, rank: int) -> None:
    """Train one of the ranks that share all parameters."""
    mesh = init_device_mesh("cpu", (options.ranks,), mesh_dim_names=("dp",))
    layers = nn.ModuleList(Layer(0.008 * options.factor(rank)) for _ in range(3))
    model = nn.Sequential(*layers)
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())

    monitor = paceline.attach(
        options.server, options.job, model=model, mesh=mesh, steps=options.steps
    )
    for _ in range(options.steps + WAIT_STEPS):
        for _ in range(MICROBATCHES):
            loss = model(torch.randn(BATCH, HIDDEN)).square().mean() / MICROBATCHES
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step()


if __name__ == "__main__":
    launch(train, options("example-fsdp2", ranks=4, description=__doc__))
