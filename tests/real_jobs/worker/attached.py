"""A worker that the client's hooks record, in place of its own instrumentation."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import paceline_client.torch as paceline
from paceline_client import RetryPolicy, Spool
from tests.real_jobs.faults import RECORDED_STEPS
from tests.real_jobs.jobs import Place
from tests.real_jobs.worker.recording import Label, Recorder

# An address without a server: recorded shares stay in the spool.
NOWHERE: Final = "http://127.0.0.1:9"
_OPTIMIZER: Final = "optimizer"
_WAIT_S: Final = 30.0


class Spanned(Recorder):
    """Passes the operations of a job's own loop to the monitor, and stores the ends of steps."""

    def __init__(self, rank: int, place: Place, monitor: paceline.Monitor) -> None:
        super().__init__(rank, place)
        self._monitor = monitor

    def add(self, label: Label, start_ns: int, end_ns: int, step: int) -> None:
        """Do nothing: the hooks record."""

    def timed(self, label: Label) -> AbstractContextManager[None]:
        if label.op == _OPTIMIZER:
            return nullcontext()  # the hooks see it
        return self._monitor.span(label.op, mb=label.mb, mc=label.mc)

    def watch(self, label: Label, complete: Callable[[], object]) -> Any:  # noqa: ANN401
        work = _Work(complete)
        watched = self._monitor.watch(label.op, work, mb=label.mb, mc=label.mc)
        # Outside of sessions only the job waits for a transfer, at the end of a step. That is too
        # late for data that is sent after the receiver has posted, so the wait is here.
        return None if watched is work else watched

    def record_collections(self) -> None:
        """Do nothing: the hooks record."""


@dataclass(frozen=True, slots=True)
class _Work:
    """The part of a `torch.distributed.Work` that the client waits for."""

    wait: Callable[[], object]


class Attached:
    """The client, attached to a worker.

    Parameters
    ----------
    attach : callable
        The trainer's method: takes the address and the other arguments of
        `paceline_client.torch.attach`.
    """

    def __init__(
        self, attach: Callable[..., paceline.Monitor], rank: int, place: Place, directory: Path
    ) -> None:
        self._rank = rank
        self._place = place
        self._spool = Spool(directory / f"spool-{rank}")
        self._steps = 0
        self._first = 0
        self._lengths: dict[int, list[list[list[int]]]] | None = None
        self.monitor = attach(
            NOWHERE,
            every=None,
            warmup=1,
            spool=self._spool.directory,
            retry=RetryPolicy(give_up_after_s=0),
        )

    def begin(self, lengths: dict[int, list[list[list[int]]]] | None) -> Recorder:
        """Record the next steps but the first, and return the recorder of the job's own loop."""
        self._first = self._steps + 1
        self._lengths = lengths
        self.monitor.record(RECORDED_STEPS, at=self._first)
        return Spanned(self._rank, self._place, self.monitor)

    def step(self) -> None:
        """End a step."""
        self._steps += 1
        self.monitor.step()
        if self._steps == self._first and self._lengths is not None:
            # The client's step numbers continue; those of a scenario begin with its warm-up.
            shifted = {str(step + self._first - 1): row for step, row in self._lengths.items()}
            self.monitor.describe({"sequence_lengths": shifted})

    def write(self, directory: Path, scenario: str, recorder: Recorder) -> None:
        """Write the client's shares in the format of a worker's own recording."""
        outcome = self.monitor.wait(_WAIT_S)
        if outcome is None or outcome.spooled is None or outcome.dropped:
            message = f"no share of {scenario}: {outcome}"
            raise RuntimeError(message)
        rows: list[str] = []
        meta: dict[str, Any] = {}
        # Shares are in the order of their recording.
        for share in self._spool.waiting():
            with self._spool.claimed(share) as claimed:
                if claimed is None:
                    message = f"{share} is gone"
                    raise RuntimeError(message)
                header, *operations = gzip.decompress(claimed[1]).decode().splitlines()
            rows += operations
            meta |= json.loads(header)["meta"]
            self._spool.remove(share)
        recorder.write(directory, scenario, rows=rows, meta=meta)
