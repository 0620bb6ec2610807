"""The processes of a launch, one for each rank, which run the scenarios one after the other.

Run with an interpreter that has PyTorch: ``python -m tests.real_jobs.worker JOB FAULTS ...``. It
imports once and forks the ranks, so that imports take little time from another launch's steps.
"""

from __future__ import annotations

import argparse
import gc
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist

import paceline_client.torch as paceline
from tests.real_jobs.faults import RECORDED_STEPS, Fault, Pace, Pauses
from tests.real_jobs.jobs import JOBS, Framework, Job
from tests.real_jobs.ranks import run_ranks
from tests.real_jobs.scenarios import run_fault
from tests.real_jobs.worker.attached import Attached
from tests.real_jobs.worker.model import Run
from tests.real_jobs.worker.recording import Recorder
from tests.real_jobs.worker.transfers import Transfers

# A collective whose peer has died must end before the launcher's time limit.
_COLLECTIVE_TIMEOUT: Final = timedelta(seconds=60)
_STEPS_TO_CONNECT: Final = 2


class Trainer(Protocol):
    """A framework's part of a job, on one rank."""

    def step(self) -> None:
        """Train for a step."""

    def attach(self, url: str, **how: Any) -> paceline.Monitor:  # noqa: ANN401
        """Let the client record the job."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The arguments of a launch."""

    job: Job
    runs: tuple[str, ...]
    directory: Path
    forward_s: float
    hooked: bool


def main() -> int:
    """Run the requested scenarios, and return 0 if all ranks succeed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("runs", help="names of faults, with commas between")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--forward-s", type=float, required=True)
    parser.add_argument("--time-limit-s", type=int, required=True)
    parser.add_argument("--hooked", action="store_true", help="recorded by the client's hooks")
    given = parser.parse_args()
    plan = _Plan(
        JOBS[given.job],
        tuple(given.runs.split(",")),
        given.directory,
        given.forward_s,
        given.hooked,
    )
    # This process ends by itself, even if its launcher has died.
    signal.alarm(given.time_limit_s)
    trainer = _trainer_of(plan.job.framework)
    torch.set_num_threads(1)
    return run_ranks(
        range(plan.job.world), lambda rank: _run(plan, rank, trainer), given.time_limit_s
    )


def _run(plan: _Plan, rank: int, trainer_of: Callable[..., Trainer]) -> None:
    job, place = plan.job, plan.job.place(rank)
    store = dist.FileStore(str(plan.directory / "store"), job.world)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=job.world, timeout=_COLLECTIVE_TIMEOUT
    )
    transfers = Transfers(job.ends)
    run = Run(Pace(job, Fault(), place, 0.0), Recorder(rank, place))
    trainer = trainer_of(job, run, place, transfers, hooked=plan.hooked)
    # The first steps create connections and buffers.
    for _ in range(_STEPS_TO_CONNECT):
        trainer.step()
    attached = Attached(trainer.attach, rank, place, plan.directory) if plan.hooked else None
    gc.collect()
    gc.freeze()
    for name in plan.runs:
        fault = run_fault(name)
        run.pace = Pace(job, fault, place, plan.forward_s)
        if attached is None:
            run.recorder = Recorder(rank, place)
        else:
            run.recorder = attached.begin(fault.lengths(job))
        if isinstance(fault, Pauses) and fault.recorded:
            run.recorder.record_collections()
        dist.barrier()
        for _ in range(1 + RECORDED_STEPS):
            trainer.step()
            run.recorder.end_step()
            if attached is not None:
                attached.step()
        dist.barrier()
        run.recorder.stop_recording_collections()
        if attached is None:
            run.recorder.write(plan.directory, name)
        else:
            attached.write(plan.directory, name, run.recorder)
    transfers.close()
    dist.barrier()
    dist.destroy_process_group()


def _trainer_of(framework: Framework) -> Callable[..., Trainer]:
    """Import and return a framework's trainer, without the other frameworks."""
    if framework is Framework.HAND_WRITTEN:
        from tests.real_jobs.worker.hand_written import HandWritten  # noqa: PLC0415

        return HandWritten
    if framework is Framework.TORCH:
        from tests.real_jobs.worker.torch_pipelining import TorchPipelining  # noqa: PLC0415

        return TorchPipelining
    from tests.real_jobs.worker.megatron import Megatron  # noqa: PLC0415

    return Megatron


if __name__ == "__main__":
    sys.exit(main())
