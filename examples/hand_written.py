"""A loop of one's own: two pipeline stages, blocking transfers, spans for what no hook knows."""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import HIDDEN, Layer, Options, launch, options
from torch import nn

import paceline_client.torch as paceline

MICROBATCHES = 8
BATCH = 4


def train(options: Options, rank: int) -> None:
    """Train a rank: the first half of the ranks are stage 0, the others stage 1."""
    replicas = options.ranks // 2
    stage, replica = divmod(rank, replicas)
    groups = [dist.new_group(list(range(first, first + replicas))) for first in (0, replicas)]
    peer = rank + replicas if stage == 0 else rank - replicas
    model = nn.Sequential(*(Layer(0.008, options, rank) for _ in range(2)))
    optimizer = torch.optim.AdamW(model.parameters())

    layout = paceline.Layout(dp=replicas, pp=2, dp_rank=replica, pp_rank=stage)
    monitor = paceline.attach(
        options.server,
        options.job,
        layout=layout,
        steps=options.steps,
        every=options.every,
        layers=(2, 2),
    )
    for _ in range(options.total_steps):
        for mb in range(MICROBATCHES):
            x = torch.randn(BATCH, HIDDEN)
            if stage == 1:
                monitor.watch("forward-recv", dist.irecv(x, peer), mb=mb).wait()
                x.requires_grad_()
            with monitor.span("forward-compute", mb=mb):
                y = model(x)
            if stage == 0:
                monitor.watch("forward-send", dist.isend(y.detach(), peer), mb=mb).wait()
                gradient = torch.empty_like(y)
                monitor.watch("backward-recv", dist.irecv(gradient, peer), mb=mb).wait()
                with monitor.span("backward-compute", mb=mb):
                    y.backward(gradient)
            else:
                with monitor.span("backward-compute", mb=mb):
                    y.square().mean().backward()
                monitor.watch("backward-send", dist.isend(x.grad, peer), mb=mb).wait()
        with monitor.span("grads-reduce-scatter"):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=groups[stage])
                parameter.grad /= replicas
        optimizer.step()
        optimizer.zero_grad()
        monitor.step()
        options.stepped(monitor, rank)


if __name__ == "__main__":
    launch(train, options("example-hand-written", ranks=4, description=__doc__))
