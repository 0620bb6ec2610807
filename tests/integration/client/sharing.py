"""Jobs whose ranks share experts, or sequences, by collectives of `torch.distributed`.

Computations are sleeps, because all ranks share the processor.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import paceline_client.torch as paceline

WIDTH = 8
TOKENS = 24
LAYERS = 2
# The rank whose experts get the most tokens, or which is late.
SLOW = 1
EXPERT_S = 0.0004
LATE_S = 0.03


class _Slept(torch.autograd.Function):  # type: ignore[misc]
    """A layer that sleeps as long in the forward as in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:  # noqa: ANN401
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        time.sleep(ctx.seconds)
        return gradients[0], None


class _Exchanged(torch.autograd.Function):  # type: ignore[misc]
    """An all-to-all as in Megatron-Core: its backward pass is the reverse all-to-all."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: torch.Tensor,
        received: list[int],
        sent: list[int],
        group: dist.ProcessGroup,
    ) -> torch.Tensor:
        ctx.received, ctx.sent, ctx.group = received, sent, group
        output = x.new_empty([sum(received), *x.shape[1:]])
        dist.all_to_all_single(
            output,
            x.contiguous(),
            output_split_sizes=received,
            input_split_sizes=sent,
            group=group,
        )
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        back = _Exchanged.apply(gradients[0], ctx.sent, ctx.received, ctx.group)
        return back, None, None, None


class _Gathered(torch.autograd.Function):  # type: ignore[misc]
    """Gathers the parts of a sequence of all ranks; the backward pass scatters the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:  # noqa: ANN401
        ctx.group = group
        whole = x.new_empty([len(x) * group.size(), *x.shape[1:]])
        dist.all_gather_into_tensor(whole, x.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        gradient = gradients[0]
        own = gradient.new_empty([len(gradient) // ctx.group.size(), *gradient.shape[1:]])
        dist.reduce_scatter_tensor(own, gradient.contiguous(), group=ctx.group)
        return own, None


class _ExpertLayer(nn.Module):  # type: ignore[misc]
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.expert = nn.Linear(WIDTH, WIDTH)
        self.group = group
        ranks = group.size()
        # Half of the tokens of all ranks go to one rank.
        share = [TOKENS // 2 if r == SLOW else TOKENS // 2 // (ranks - 1) for r in range(ranks)]
        self.sent, self.received = share, [share[rank]] * ranks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # All-to-alls of counts and probabilities, which must not be recorded as operations.
        counts = torch.tensor(self.sent)
        dist.all_to_all_single(torch.empty_like(counts), counts, group=self.group)
        there = _Exchanged.apply(x, self.received, self.sent, self.group)
        there = _Slept.apply(self.expert(there), EXPERT_S * len(there))
        return x + _Exchanged.apply(there, self.sent, self.received, self.group)


class _SequenceLayer(nn.Module):  # type: ignore[misc]
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.group = group
        self.seconds = LATE_S * (1.6 if rank == SLOW else 1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = _Slept.apply(self.linear(x), self.seconds)
        return own + _Gathered.apply(own, self.group).mean(dim=0)


class _Job:
    def __init__(self, layers: list[nn.Module], rank: int) -> None:
        self.model = DistributedDataParallel(nn.Sequential(*layers))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.rank = rank

    def step(self, number: int) -> float:
        generator = torch.Generator().manual_seed(100 * number + self.rank)
        x = torch.randn(TOKENS, WIDTH, generator=generator)
        # The input needs gradients, as an embedding's output does, so that the first layer has a
        # whole backward pass.
        loss = self.model(x.requires_grad_()).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.item())


class Experts(_Job):
    """Data-parallel ranks that share the experts of each layer."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.group = dist.new_group(list(range(ranks)))
        super().__init__([_ExpertLayer(rank, self.group) for _ in range(LAYERS)], rank)

    def attach(self, url: str, **how: Any) -> paceline.Monitor:  # noqa: ANN401
        groups = {"ep": self.group}
        return paceline.attach(url, "job", model=self.model, groups=groups, level="all", **how)


class _MegatronLayer(nn.Module):  # type: ignore[misc]
    """A layer with the exchanges of Megatron-Core's dispatcher, among them probabilities."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.expert = nn.Linear(WIDTH, WIDTH)
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from megatron.core.tensor_parallel import all_to_all  # noqa: PLC0415 - slow to import

        there = all_to_all(self.group, x)
        likely = all_to_all(self.group, torch.ones(len(x)))
        return x + all_to_all(self.group, self.expert(there) * likely[:, None])


class MegatronExperts(_Job):
    """Data-parallel ranks of Megatron-Core, in pairs that share the experts of each layer."""

    def __init__(self, rank: int, ranks: int) -> None:
        del ranks
        with warnings.catch_warnings():
            # Importing Megatron-Core warns about missing optional packages.
            warnings.simplefilter("ignore")
            from megatron.core import parallel_state  # noqa: PLC0415 - slow to import
            from megatron.core.model_parallel_config import (  # noqa: PLC0415
                ModelParallelConfig,
            )

        parallel_state.initialize_model_parallel(
            expert_model_parallel_size=2, create_gloo_process_groups=False
        )
        self.config = ModelParallelConfig()
        group = parallel_state.get_expert_model_parallel_group()
        super().__init__([_MegatronLayer(group) for _ in range(LAYERS)], rank)

    def attach(self, url: str, **how: Any) -> paceline.Monitor:  # noqa: ANN401
        return paceline.attach(
            url, "job", model=self.model, megatron_config=self.config, level="all", **how
        )


class Sequences(_Job):
    """Pairs of ranks that share sequences."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "cp"))
        group = self.mesh.get_group("cp")
        super().__init__([_SequenceLayer(rank, group) for _ in range(LAYERS)], rank)

    def attach(self, url: str, **how: Any) -> paceline.Monitor:  # noqa: ANN401
        how |= {"level": "all", "tensor_ranks": "all"}
        return paceline.attach(url, "job", model=self.model, mesh=self.mesh, **how)
