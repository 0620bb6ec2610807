"""A transformer with fully sharded parameters (FSDP2), and Paceline in three lines."""

from __future__ import annotations

import torch
from common import Options, Slept, launch, options
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import paceline_client.torch as paceline

LAYERS = 8
WIDTH = 64
SEQUENCE = 16
BATCH = 2
TOKENS = 100


class Block(nn.Module):
    """A small layer of the transformer."""

    def __init__(self, options: Options, rank: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True)
        self.slept = Slept(0.004, options, rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the shape of its input."""
        return self.slept(self.layer(x))


class Transformer(nn.Module):
    """Predicts the next token."""

    def __init__(self, options: Options, rank: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(Block(options, rank) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores of each next token."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(options: Options, rank: int) -> None:
    """Train one of the ranks that share all parameters."""
    mesh = init_device_mesh("cpu", (options.ranks,), mesh_dim_names=("dp",))
    model = Transformer(options, rank)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())

    monitor = paceline.attach(
        options.server,
        options.job,
        model=model,
        mesh=mesh,
        steps=options.steps,
        every=options.every,
    )
    for _ in range(options.total_steps):
        tokens = torch.randint(TOKENS, (BATCH, SEQUENCE + 1))
        scores = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        monitor.step()
        options.stepped(monitor, rank)


if __name__ == "__main__":
    launch(train, options("example-fsdp2", ranks=4, description=__doc__))
