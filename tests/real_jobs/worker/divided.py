"""A small job with several divisions, in turns: ``-m … DIRECTORY LIMIT``.

Each rank writes the times of steps, and of a single block and a send for microbatches.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from tests.real_jobs.divisions import (
    BACKWARD_S,
    BLOCKS,
    DIVISIONS,
    FORWARD_S,
    HIDDEN,
    ROUNDS,
    SEQUENCE,
    WORLD,
    Division,
)
from tests.real_jobs.ranks import run_ranks
from tests.real_jobs.worker.model import Block

_PROFILED: Final = 4
_SENDS: Final = 20


class _Paced(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        del ctx
        time.sleep(FORWARD_S * x.shape[1])
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        del ctx
        time.sleep(BACKWARD_S * gradient.shape[1])
        return gradient


class _Stage:
    """A rank's stage under 1F1B: receives block, sends do not."""

    def __init__(self, division: Division, rank: int, groups: list[Any]) -> None:
        self.division, self.rank = division, rank
        # The stages of a pipeline are `dp` ranks apart.
        self.place = rank // division.dp
        self.group = groups[self.place]
        self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS // division.pp)])
        self.sends: list[Any] = []
        self.held: list[tuple[torch.Tensor, torch.Tensor]] = []

    def step(self) -> None:
        """Train on the batch."""
        count = self.division.microbatches
        ahead = min(self.division.pp - 1 - self.place, count)
        for number in range(count + ahead):
            if number < count:
                self._forward()
            if number >= ahead:
                self._backward()
        for send in self.sends:
            send.wait()
        self.sends = []
        parameters = list(self.blocks.parameters())
        gradients = torch.cat([parameter.grad.flatten() for parameter in parameters])
        dist.all_reduce(gradients, group=self.group)
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, gradient in zip(parameters, gradients.split(sizes), strict=True):
            parameter.data -= 1e-4 * gradient.view_as(parameter)
            parameter.grad = None

    def _received(self, rank: int) -> torch.Tensor:
        tensor = torch.empty(SEQUENCE, self.division.microbatch, HIDDEN)
        dist.recv(tensor, rank)
        return tensor

    def _forward(self) -> None:
        if self.place:
            given = self._received(self.rank - self.division.dp).requires_grad_()
        else:
            given = torch.randn(SEQUENCE, self.division.microbatch, HIDDEN)
        output = given
        for block in self.blocks:
            output = _Paced.apply(block(output))
        self.held.append((given, output))
        if self.place < self.division.pp - 1:
            self.sends.append(dist.isend(output.detach(), self.rank + self.division.dp))

    def _backward(self) -> None:
        given, output = self.held.pop(0)
        last = self.place == self.division.pp - 1
        gradient = None if last else self._received(self.rank + self.division.dp)
        if gradient is None:
            output.square().mean().backward()
        else:
            output.backward(gradient)
        if given.grad is not None:
            self.sends.append(dist.isend(given.grad, self.rank - self.division.dp))


def _profile(microbatch: int, rank: int) -> tuple[float, float, float]:
    """Return the times of a block's forward and backward pass and a send for a microbatch in s."""
    dist.barrier()
    # As many successive blocks as a stage has.
    blocks = nn.ModuleList([Block() for _ in range(_PROFILED)])
    taken: list[list[float]] = [[], [], []]
    for _ in range(_PROFILED):
        given = torch.randn(SEQUENCE, microbatch, HIDDEN, requires_grad=True)
        began_s, output = time.perf_counter(), given
        for block in blocks:
            output = _Paced.apply(block(output))
        between_s = time.perf_counter()
        output.square().mean().backward()
        taken[0].append((between_s - began_s) / _PROFILED)
        taken[1].append((time.perf_counter() - between_s) / _PROFILED)
    tensor = torch.zeros(SEQUENCE, microbatch, HIDDEN)
    for _ in range(_SENDS):
        began_s = time.perf_counter()
        for receives in (rank % 2, 1 - rank % 2):
            (dist.recv if receives else dist.send)(tensor, rank ^ 1)
        taken[2].append((time.perf_counter() - began_s) / 2)
    forward_s, backward_s, send_s = (statistics.median(times) for times in taken)
    return forward_s, backward_s, send_s


def _timed(stage: _Stage) -> float:
    dist.barrier()
    began_s = time.perf_counter()
    stage.step()
    dist.barrier()
    return time.perf_counter() - began_s


def _run(rank: int, directory: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{directory}/store", rank=rank, world_size=WORLD)
    sizes = sorted({division.microbatch for division in DIVISIONS})
    stages = []
    for division in DIVISIONS:
        groups = [
            dist.new_group(list(range(pp * division.dp, (pp + 1) * division.dp)))
            for pp in range(division.pp)
        ]
        stages.append(_Stage(division, rank, groups))
        stages[-1].step()
    # In turns, so that other load of the machine affects all divisions alike.
    profiles: list[dict[int, Any]] = []
    steps_s: list[list[float]] = []
    for _ in range(ROUNDS):
        profiles.append({size: _profile(size, rank) for size in sizes})
        steps_s.append([_timed(stage) for stage in stages])
    said = {"profiles": profiles, "steps_s": steps_s}
    (directory / f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


def main() -> int:
    """Run every division, and return 0 if all ranks succeed."""
    directory, limit_s = Path(sys.argv[1]), int(sys.argv[2])
    signal.alarm(limit_s)
    return run_ranks(range(WORLD), lambda rank: _run(rank, directory), limit_s)


if __name__ == "__main__":
    sys.exit(main())
