"""Random host-executed jobs with a given cause of straggling and about a given slowdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from app.analysis.synthesis.host_jobs import HostJob, Posting
from app.analysis.synthesis.host_sessions import HostSession, run
from app.analysis.synthesis.job import MS, stream

_OVERLAPPING: Final = 0.3

Way = Callable[[HostJob, np.random.Generator], HostJob]


def _blocking(job: HostJob, rng: np.random.Generator) -> HostJob:
    return replace(job, wire_ns=job.forward_ns * float(rng.uniform(0.1, 0.5)))


def _windowed(job: HostJob, rng: np.random.Generator) -> HostJob:
    return replace(
        job,
        wire_ns=job.forward_ns * float(rng.uniform(0.05, 0.4)),
        posting=Posting.WINDOWED,
        window=int(rng.integers(1, 4)),
        sends_block=bool(rng.random() < 0.5),  # noqa: PLR2004 - half of them
    )


def _overlapping(job: HostJob, rng: np.random.Generator) -> HostJob:
    posting = Posting(str(rng.choice(list(Posting))))
    return replace(job, barrier=False, posting=posting)


def _gathering(job: HostJob, rng: np.random.Generator) -> HostJob:
    del rng
    return replace(job, gathers=True)


def _late(job: HostJob, rng: np.random.Generator) -> HostJob:
    del rng
    return replace(job, late_ends=True)


def _handing_over(job: HostJob, rng: np.random.Generator) -> HostJob:
    handover = job.forward_ns * float(rng.uniform(0.03, 0.1))
    return replace(job, handover_ns=handover, transfers=False, wire_ns=0.0)


def _in_a_v(job: HostJob, rng: np.random.Generator) -> HostJob:
    return replace(job, v_shaped=True, transfers=bool(rng.random() < 0.5))  # noqa: PLR2004 - half


# Ways of running, by name, that the dependency model of the paper does not cover.
WAYS: Final[Mapping[str, Way]] = {
    "blocking": _blocking,
    "windowed": _windowed,
    "overlapping": _overlapping,
    "gathering": _gathering,
    "late-ends": _late,
    "handing-over": _handing_over,
    "v-shaped": _in_a_v,
}


def _slow_worker(job: HostJob, excess: float, rng: np.random.Generator) -> HostJob:
    worker = (int(rng.integers(job.dp)), int(rng.integers(job.pp)))
    return replace(job, factors={worker: 1 + excess})


def _heavy_stage(job: HostJob, excess: float, rng: np.random.Generator) -> HostJob:
    stage = int(rng.integers(job.pp))
    return replace(job, factors={(dp, stage): 1 + excess for dp in range(job.dp)})


def _slow_link(job: HostJob, excess: float, rng: np.random.Generator) -> HostJob:
    link = (int(rng.integers(job.dp)), int(rng.integers(job.pp - 1)))
    # the transfer takes at least half of a forward, since a diagnosis cannot see a shorter one
    slow_ns = job.wire_ns + job.forward_ns * (0.5 + excess)
    wire_ns = max(job.wire_ns, 0.02 * job.forward_ns)
    return replace(job, wire_ns=wire_ns, transfers=True, links={link: slow_ns / wire_ns})


def _collecting(job: HostJob, excess: float, rng: np.random.Generator) -> HostJob:
    pause = job.forward_ns * (2 + 2 * excess)
    # one or two pauses in a step on average, on random workers
    share = float(rng.uniform(1.0, 2.5)) / (job.dp * job.pp * job.microbatches)
    return replace(job, pause_ns=pause, pauses=share)


HOST_CAUSES: Final[Mapping[str, Callable[[HostJob, float, np.random.Generator], HostJob]]] = {
    "slow_worker": _slow_worker,
    "stage_imbalance": _heavy_stage,
    "network": _slow_link,
    "garbage_collection": _collecting,
}


def draw_host_session(
    cause: str | None, slowdown: float, seed: int, way: str | None = None
) -> HostSession:
    """Return a session of a random job that runs in the given way, or in a random one.

    Parameters
    ----------
    cause : str or None
        One of `HOST_CAUSES`; None for a healthy job.
    slowdown : float
        Factor of the fault itself; the job is slowed by less, as the session's truth shows.
    way : str, optional
        One of `WAYS`.
    """
    rng = stream(seed, "hosts")
    forward = float(np.exp(rng.uniform(np.log(15), np.log(180)))) * MS
    pp = int(rng.choice([2, 2, 3, 4]))
    job = HostJob(
        dp=int(rng.choice([2, 2, 3, 4, 6])),
        pp=pp,
        microbatches=int(rng.integers(max(4, pp), 13)),
        steps=int(rng.integers(8, 17)),
        forward_ns=forward,
        backward_ns=forward * float(rng.uniform(1.8, 2.3)),
        wire_ns=forward * float(rng.uniform(0.002, 0.01)),
        noise=float(rng.uniform(0.002, 0.02)),
        worker_noise=float(rng.uniform(0.001, 0.006)),
        wire_noise=float(rng.uniform(0.02, 0.1)),
        seed=seed,
    )
    way = str(rng.choice(list(WAYS))) if way is None else way
    job = replace(WAYS[way](job, rng), name=f"{way}-{seed}")
    if not job.v_shaped and rng.random() < _OVERLAPPING:
        job = replace(job, barrier=False)
    return run(job if cause is None else HOST_CAUSES[cause](job, slowdown - 1, rng))
