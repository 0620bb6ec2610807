"""Two weeks of a synthetic fleet: jobs, the hosts they use on one cluster, and their faults.

Every cause has a job that shows it at the end. Hours count back from the end. A job holds whole
hosts, and no two jobs hold one host at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    SlowWorker,
    StageImbalance,
)
from app.analysis.synthesis.job import MS, JobModel, stream
from app.analysis.synthesis.scenarios import SCENARIOS
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Trace

CLUSTER_HOSTS: Final = 448
GPUS_PER_HOST: Final = 8
HOURS: Final = 14 * 24.0
# Hours between sessions of a job; the verdict on a session covers the time until the next session.
EVERY_H: Final = 6.0
# Sites of the cluster; jobs at different sites share no host.
SITES: Final = ("north", "south")
# The same seed in all sessions keeps a slow worker slow, so that one incident covers all of them.
FAULT_SEED: Final = 4

# Sessions in these last hours have all steps; earlier sessions have half of the steps, so that they
# are synthesized faster.
WHOLE_H: Final = 80.0
_FEWEST_STEPS: Final = 8

# Time between two steps (zeroing gradients, logging, the next batch) as a multiple of a forward.
_TURN: Final = 0.4

_DAY_H: Final = 24.0


@dataclass(frozen=True, slots=True)
class Phase:
    """Job and faults of a run from a certain time on."""

    from_h: float
    job: JobModel
    injections: tuple[Injection, ...] = ()
    # Numbers of replacement hosts by the number of the host that each of them replaces.
    instead: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """A job from its start until it ends or the history ends."""

    team: str
    site: str
    first_host: int  # of as many hosts in a row as the job needs
    phases: tuple[Phase, ...]  # the earliest first
    to_h: float = 0.0
    first_seed: int = 0  # of its first session; the next ones count from there

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self.phases[0].job.name

    @property
    def from_h(self) -> float:
        """Return when the job started, in hours before the end of the history."""
        return self.phases[0].from_h

    def sessions(self) -> Iterator[PlannedSession]:
        """Yield the sessions of the run, the earliest first."""
        latest_h = self.to_h + float(stream(0, "latest session", self.name).uniform(0.03, 0.6))
        count = int((self.from_h - latest_h) // EVERY_H) + 1
        for number in range(count):
            at_h = latest_h + (count - 1 - number) * EVERY_H
            phase = next(phase for phase in reversed(self.phases) if phase.from_h >= at_h)
            yield PlannedSession(self, phase, at_h, number)


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """A planned session of a run, which is not executed yet."""

    run: Run
    phase: Phase
    at_h: float  # when it is received
    number: int  # of the run's sessions, from 0 on

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of the session's hosts, in the order of their ranks."""
        count = -(-self.phase.job.sizes.world // GPUS_PER_HOST)
        numbers = range(self.run.first_host, self.run.first_host + count)
        return tuple(host_name(self.phase.instead.get(number, number)) for number in numbers)

    def synthesize(self, end_ns: int, labels: Mapping[str, str]) -> Trace:
        """Return the trace of the session, whose last operation ends at `end_ns`."""
        job = self.phase.job
        if self.at_h > WHOLE_H:
            job = replace(job, steps=max(job.steps // 2, _FEWEST_STEPS))
        # Make the recorded steps consecutive, with a small gap between them.
        gap_ns = job.costs.step_gap_ns or _TURN * job.costs.forward_ns
        job = replace(job, consecutive=True, costs=replace(job.costs, step_gap_ns=gap_ns))
        session = synthesize(job, self.phase.injections, seed=self.run.first_seed + self.number)
        trace, hosts = session.trace, self.hosts
        # Number the steps as if the job had trained since its start.
        step_s = float(np.mean(session.truth.step_times_s))
        trained = int((self.run.from_h - self.at_h) * 3600 / step_s)
        extra = dict(trace.meta.extra)
        if lengths := extra.get("sequence_lengths"):
            extra["sequence_lengths"] = {
                str(int(step) + trained): lanes for step, lanes in lengths.items()
            }
        meta = replace(
            trace.meta,
            hosts={rank: hosts[rank // GPUS_PER_HOST] for rank in range(trace.meta.sizes.world)},
            labels={**trace.meta.labels, **labels},
            extra=extra,
        )
        shift_ns = end_ns - int((trace.start_ns + trace.duration_ns).max())
        return replace(
            trace,
            meta=meta,
            step=trace.step + np.int64(trained),
            start_ns=trace.start_ns + np.int64(shift_ns),
        )


def host_name(number: int) -> str:
    """Return the name of a host of the cluster."""
    return f"node-{number:03d}"


def runs() -> tuple[Run, ...]:
    """Return all runs of the history: those with a story, and one for each cause."""
    return (*_STORIES, *_NOW)


def _scenario(name: str, team: str, site: str, first_host: int, **when: float) -> Run:
    """Return a run of a scenario's job, which is healthy until its fault begins.

    Parameters
    ----------
    when : float
        The job started ``days`` days, and its fault began ``fault_h`` hours, before the end;
        without ``fault_h`` the fault was present from the start.
    """
    scenario = SCENARIOS[name]
    faults = scenario.faults(FAULT_SEED)
    from_h = when["days"] * _DAY_H
    if "fault_h" not in when:
        phases: tuple[Phase, ...] = (Phase(from_h, scenario.job, faults),)
    else:
        phases = (Phase(from_h, scenario.job), Phase(when["fault_h"], scenario.job, faults))
    return Run(team, site, first_host, phases)


# Host with slow computing in every job that uses it, until it is repaired.
BAD_HOST: Final = 17
BAD_FROM_H: Final = 10.6 * _DAY_H
SPARE: Final = 129
SWAPPED_H: Final = 9.5 * _DAY_H
AGAIN_FROM_H: Final = 8.2 * _DAY_H
SECOND_SPARE: Final = 130
DRAINED_H: Final = 7 * _DAY_H
REPAIRED_H: Final = 6.5 * _DAY_H
BACK_H: Final = 6.2 * _DAY_H

# Time of a deployment that slowed a job, and time of its rollback.
DEPLOYED_H: Final = 5.1 * _DAY_H
ROLLED_BACK_H: Final = 4.1 * _DAY_H

# A job whose layers are distributed anew over its stages, and which then ends.
DIVIDED: Final = "dense-24b"
DIVIDED_H: Final = 10.1 * _DAY_H
DIVIDED_ENDED_H: Final = 5 * _DAY_H

LAUNCHING: Final = "dense-8b"
LAUNCHING_ENDED_H: Final = 1.5 * _DAY_H

HEALTHY: Final = SCENARIOS["healthy"].job
HOT: Final = SCENARIOS["hot-device"].job
_CHUNKS: Final = SCENARIOS["virtual-stages"].job
_UNEVEN: Final = replace(SCENARIOS["stage-imbalance"].job, name=DIVIDED)
_LAYERS: Final = (18, 17, 17, 8)
# The job with the same layers and the same loss layer, distributed over stages of other sizes.
_DIVIDED: Final = replace(
    _UNEVEN,
    layers=_LAYERS,
    costs=replace(
        _UNEVEN.costs,
        forward_ns=_UNEVEN.costs.forward_ns * 17 / 15,
        backward_ns=_UNEVEN.costs.backward_ns * 17 / 15,
    ),
)
_IN_TURN: Final = (
    StageImbalance(18 / 17, 18 / 17, at=0),
    # The loss layer takes 1.07 times as long as a stage of 15 layers in the forward, and 0.41 times
    # in the backward.
    StageImbalance((8 + 1.07 * 15) / 17, (8 + 0.41 * 15) / 17),
)
_PLACE_OF_BAD_HOST: Final = (0, 2)  # worker of the job on hosts 1 to 32
_PLACE_IN_HOT: Final = (2, 1)
_HOT_HOST: Final = 43  # whose place the bad host takes there

_STORIES: Final = (
    Run(
        "pretraining",
        "north",
        1,
        (
            Phase(13.6 * _DAY_H, HEALTHY),
            Phase(BAD_FROM_H, HEALTHY, (SlowWorker(_PLACE_OF_BAD_HOST, factor=1.6),)),
            Phase(SWAPPED_H, HEALTHY, instead={BAD_HOST: SPARE}),
            Phase(
                DEPLOYED_H,
                HEALTHY,
                (GarbageCollection(240 * MS, pauses=0.2, growth=0.6),),
                instead={BAD_HOST: SPARE},
            ),
            Phase(ROLLED_BACK_H, HEALTHY, instead={BAD_HOST: SPARE}),
        ),
    ),
    Run(
        "pretraining",
        "north",
        33,
        (
            Phase(
                AGAIN_FROM_H,
                HOT,
                (SlowWorker(_PLACE_IN_HOT, factor=1.5),),
                instead={_HOT_HOST: BAD_HOST},
            ),
            Phase(DRAINED_H, HOT, instead={_HOT_HOST: SECOND_SPARE}),
            Phase(
                20.0,
                HOT,
                SCENARIOS["hot-device"].faults(FAULT_SEED),
                instead={_HOT_HOST: SECOND_SPARE},
            ),
        ),
    ),
    Run(
        "pretraining",
        "north",
        65,
        (
            Phase(BACK_H, _CHUNKS, instead={80: BAD_HOST}),
            Phase(
                16.0,
                _CHUNKS,
                SCENARIOS["virtual-stages"].faults(FAULT_SEED),
                instead={80: BAD_HOST},
            ),
        ),
    ),
    Run(
        "research",
        "north",
        81,
        (
            Phase(
                4.5 * _DAY_H,
                SCENARIOS["slow-launching"].job,
                SCENARIOS["slow-launching"].faults(FAULT_SEED),
            ),
        ),
        to_h=LAUNCHING_ENDED_H,
    ),
    Run(
        "research",
        "south",
        212,
        (
            Phase(13 * _DAY_H, _UNEVEN, (StageImbalance(),)),
            Phase(DIVIDED_H, _DIVIDED, _IN_TURN),
        ),
        to_h=DIVIDED_ENDED_H,
    ),
)

# Jobs that run at the end of the history, one for each cause.
_NOW: Final = (
    # Two causes of this job cost nearly the same; with this seed the same cause is first in all
    # sessions.
    replace(_scenario("mixture", "long-context", "north", 97, days=3.2), first_seed=24),
    _scenario("slow-worker", "pretraining", "south", 136, days=4, fault_h=20.0),
    _scenario("stage-imbalance", "research", "north", 200, days=10.4),
    _scenario("kernel-dependency", "moe", "south", 212, days=1.5),
    _scenario("sequence-lengths", "long-context", "south", 224, days=3.5),
    _scenario("garbage-collection", "moe", "south", 256, days=3, fault_h=14.0),
    _scenario("network", "research", "south", 288, days=3, fault_h=20.0),
    _scenario("congestion", "research", "south", 320, days=2.2),
    _scenario("data-loading", "multimodal", "south", 344, days=2.5),
    _scenario("checkpoints", "pretraining", "south", 376, days=2),
    _scenario("tensor-parallel", "pretraining", "south", 408, days=1.6),
    _scenario("context-parallel", "long-context", "south", 416, days=1.5),
    _scenario("experts", "moe", "south", 422, days=1.5),
    _scenario("memory-fragmentation", "moe", "south", 426, days=1.4),
    _scenario("standstills", "multimodal", "south", 441, days=1.3),
    _scenario("evaluations", "research", "south", 445, days=1.2),
    _scenario("slow-together", "research", "south", 432, days=1.5),
    _scenario("rotating", "research", "south", 436, days=1.5),
    _scenario("uneven-microbatches", "research", "south", 440, days=1.5),
)
