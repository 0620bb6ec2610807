"""A 1F1B loop like Megatron's: blocking fused transfers, or receives posted ahead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

import paceline_client.torch as paceline
from tests.real_jobs.jobs import MICROBATCHES, Job, Place, Posting
from tests.real_jobs.worker.data_parallel import DataParallel
from tests.real_jobs.worker.model import (
    BACKWARD,
    FORWARD,
    HIDDEN,
    MICROBATCH_SIZE,
    SEQUENCE,
    Chunk,
    Run,
    microbatch_input,
)
from tests.real_jobs.worker.recording import Label
from tests.real_jobs.worker.transfers import Handle, Transfers


@dataclass(slots=True)
class _Flight:
    """The pending transfers of a step, by microbatch."""

    inputs: dict[int, torch.Tensor] = field(default_factory=dict)
    outputs: dict[int, torch.Tensor] = field(default_factory=dict)
    gradients: dict[int, torch.Tensor] = field(default_factory=dict)
    receiving: dict[tuple[bool, int], Handle] = field(default_factory=dict)
    sending: list[Handle] = field(default_factory=list)


class HandWritten:
    """The job's trainer on one rank.

    Parameters
    ----------
    hooked : bool
        Whether the client records, with its spans in place of the worker's own.
    """

    def __init__(
        self, job: Job, run: Run, place: Place, transfers: Transfers, *, hooked: bool = False
    ) -> None:
        del hooked
        self._job = job
        self._run = run
        self._place = place
        self._transfers = transfers
        self._chunk = Chunk(run, job.layers, 0)
        groups = [
            dist.new_group([job.rank(dp, pp) for dp in range(job.dp)]) for pp in range(job.pp)
        ]
        self._data_parallel = DataParallel(job, run, [self._chunk], groups[place.pp])
        self._now = _Flight()

    def attach(self, url: str, **how: Any) -> paceline.Monitor:  # noqa: ANN401
        """Let the client record the job."""
        place = self._place
        layout = paceline.Layout(
            dp=self._job.dp, pp=self._job.pp, dp_rank=place.dp, pp_rank=place.pp
        )
        return paceline.attach(url, self._job.name, model=[self._chunk], layout=layout, **how)

    def step(self) -> None:
        """Train on a step's microbatches."""
        self._now = _Flight()
        self._data_parallel.gather_parameters()
        if self._job.posting is Posting.BLOCKING:
            self._blocking()
        else:
            self._windowed()
        self._data_parallel.reduce_gradients()
        self._data_parallel.update()

    def _blocking(self) -> None:
        """Run a step in which transfers that are posted together are waited for at once."""
        ahead = min(MICROBATCHES, self._job.pp - 1 - self._place.pp)
        for mb in range(ahead):
            self._wait(self._receive(mb, backward=False))
            self._forward(mb)
            self._wait(self._send(mb, backward=False))
        if ahead < MICROBATCHES:
            self._wait(self._receive(ahead, backward=False))
        for mb in range(ahead, MICROBATCHES):
            oldest = mb - ahead
            self._forward(mb)
            self._wait(self._send(mb, backward=False), self._receive(oldest, backward=True))
            self._backward(oldest)
            coming = [] if mb + 1 == MICROBATCHES else self._receive(mb + 1, backward=False)
            self._wait(self._send(oldest, backward=True), coming)
        for mb in range(MICROBATCHES - ahead, MICROBATCHES):
            self._wait(self._receive(mb, backward=True))
            self._backward(mb)
            self._wait(self._send(mb, backward=True))

    def _windowed(self) -> None:
        """Run a step in which a receive is posted after the previous computation; sends overlap."""
        ahead = min(MICROBATCHES, self._job.pp - 1 - self._place.pp)
        self._post_ahead(0, backward=False)
        self._post_ahead(0, backward=True)
        for slot in range(MICROBATCHES + ahead):
            if slot < MICROBATCHES:
                self._take(slot, backward=False)
                self._forward(slot)
                self._post_ahead(slot + 1, backward=False)
                self._now.sending += self._send(slot, backward=False)
            if slot >= ahead:
                self._take(slot - ahead, backward=True)
                self._backward(slot - ahead)
                self._post_ahead(slot - ahead + 1, backward=True)
                self._now.sending += self._send(slot - ahead, backward=True)
        self._wait(self._now.sending)

    def _post_ahead(self, mb: int, *, backward: bool) -> None:
        if mb < MICROBATCHES:
            for handle in self._receive(mb, backward=backward):
                self._now.receiving[backward, mb] = handle

    def _take(self, mb: int, *, backward: bool) -> None:
        handle = self._now.receiving.pop((backward, mb), None)
        if handle is not None:
            handle.wait()

    @staticmethod
    def _wait(*posted: list[Handle]) -> None:
        for handles in posted:
            for handle in handles:
                handle.wait()

    def _forward(self, mb: int) -> None:
        given = microbatch_input() if self._place.pp == 0 else self._now.inputs[mb]
        self._now.inputs[mb] = given
        with self._run.computing(FORWARD, mb, None):
            self._now.outputs[mb] = self._chunk(given)

    def _backward(self, mb: int) -> None:
        output = self._now.outputs.pop(mb)
        with self._run.computing(BACKWARD, mb, None):
            if self._place.pp == self._job.pp - 1:
                output.square().mean().backward()
            else:
                output.backward(self._now.gradients.pop(mb))

    def _send(self, mb: int, *, backward: bool) -> list[Handle]:
        stage = self._place.pp - 1 if backward else self._place.pp + 1
        if not 0 <= stage < self._job.pp:
            return []
        if backward:
            gradient = self._now.inputs.pop(mb).grad
            if gradient is None:
                message = "the stage's input has no gradient"
                raise RuntimeError(message)
            tensor, op = gradient, "backward-send"
        else:
            tensor, op = self._now.outputs[mb].detach(), "forward-send"
        return [self._post(Label(op, mb), tensor, stage, send=True)]

    def _receive(self, mb: int, *, backward: bool) -> list[Handle]:
        stage = self._place.pp + 1 if backward else self._place.pp - 1
        if not 0 <= stage < self._job.pp:
            return []
        tensor = torch.empty(SEQUENCE, MICROBATCH_SIZE, HIDDEN)
        if backward:
            self._now.gradients[mb] = tensor
            return [self._post(Label("backward-recv", mb), tensor, stage, send=False)]
        handle = self._post(Label("forward-recv", mb), tensor, stage, send=False)
        self._now.inputs[mb] = tensor.requires_grad_()
        return [handle]

    def _post(self, label: Label, tensor: torch.Tensor, stage: int, *, send: bool) -> Handle:
        return self._transfers.post(
            self._run.recorder,
            label,
            tensor,
            send=send,
            peer=self._job.rank(self._place.dp, stage),
            group=None,
            wire_s=self._run.pace.wire_s(min(stage, self._place.pp)),
        )
