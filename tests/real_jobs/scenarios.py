"""All scenarios: a kind of job with a fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.analysis.replay.adaptations.kind import Name
from tests.real_jobs.faults import (
    EvenShare,
    Fault,
    HeavyStage,
    Pauses,
    SlowLink,
    SlowWorker,
    UnevenLengths,
)
from tests.real_jobs.jobs import JOBS, Job, Place

HEALTHY: Final = "healthy"
_EVEN: Final = "even"

_FAULTS: Final[Mapping[str, Fault]] = {
    HEALTHY: Fault(),
    "slow1.3": SlowWorker(Place(1, 0), 1.3),
    "slow1.8": SlowWorker(Place(1, 0), 1.8),
    "slow3": SlowWorker(Place(1, 0), 3.0),
    "slow1.8-last": SlowWorker(Place(0, 1), 1.8),
    # at DP 1
    "first1.8": SlowWorker(Place(0, 0), 1.8),
    "second1.3": SlowWorker(Place(0, 1), 1.3),
    "second1.8": SlowWorker(Place(0, 1), 1.8),
    "fourth1.8": SlowWorker(Place(0, 3), 1.8),
    "heavy-last": HeavyStage(1, 1.5),
    "heavy-fourth": HeavyStage(3, 1.5),
    "gc": Pauses(recorded=True),
    "pauses": Pauses(recorded=False),
    "lengths": UnevenLengths(),
    "link": SlowLink(dp=1, first_stage=0, takes_s=0.024),
    "link-middle": SlowLink(dp=0, first_stage=1, takes_s=0.024),
}

_SLOW: Final = (HEALTHY, "slow1.3", "slow1.8", "slow3", "slow1.8-last")
_SLOW_4: Final = (HEALTHY, "first1.8", "second1.3", "second1.8", "fourth1.8")

_OF_JOB: Final[Mapping[str, tuple[str, ...]]] = {
    "hwC": (*_SLOW, "heavy-last", "gc", "pauses", "lengths", "link"),
    "hwL": (*_SLOW, "heavy-last"),
    "hwS": (*_SLOW, "heavy-last", "gc", "link"),
    "hwW": (*_SLOW, "link"),
    "hwE": (*_SLOW, "lengths"),
    "hw4": (*_SLOW_4, "heavy-fourth", "gc", "link-middle"),
    "hwS4": (HEALTHY, "second1.8", "fourth1.8"),
    "tpS": (*_SLOW, "heavy-last", "gc", "lengths", "link"),
    "tp4": (HEALTHY, "second1.8", "heavy-fourth"),
    "tpI": (*_SLOW, "heavy-last", "gc", "lengths"),
    "tpIw": (*_SLOW, "gc"),
    "tpI4": (HEALTHY, "slow1.8"),
    "tpZ": (*_SLOW, "heavy-last"),
    "tpF": (*_SLOW, "heavy-last", "gc", "lengths"),
    "tpF2": (HEALTHY, "slow1.8", "slow1.8-last"),
    "tpIF": (HEALTHY, "slow1.8", "slow1.8-last"),
    "tpD": (HEALTHY, "slow1.3", "slow1.8", "slow1.8-last", "heavy-last"),
    "mc": (*_SLOW, "heavy-last", "gc", "lengths"),
    "mc4": (HEALTHY, "second1.8", "fourth1.8"),
    "mcV": (*_SLOW, "heavy-last", "gc"),
    "mcO": (*_SLOW, "gc"),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of job with one fault.

    Parameters
    ----------
    fault_name : str
        Key of the fault among those of all jobs.
    """

    job: Job
    fault_name: str

    @property
    def name(self) -> str:
        """Job and fault."""
        return f"{self.job.name}-{self.fault_name}"

    @property
    def fault(self) -> Fault:
        """The fault of the scenario."""
        return _FAULTS[self.fault_name]

    @property
    def reference(self) -> str:
        """Name of the run without the fault, for `run_fault`."""
        even = self.fault.even_share(self.job)
        return HEALTHY if even == 1 else f"{_EVEN}{even}"


SCENARIOS: Final[Mapping[str, Scenario]] = {
    scenario.name: scenario
    for job, faults in _OF_JOB.items()
    for scenario in (Scenario(JOBS[job], fault) for fault in faults)
}

# The scenarios of CI: every framework, layout and adaptation, and each fault at least once.
REPRESENTATIVE: Final = (
    "hwC-gc",
    "hwC-link",
    "hwL-slow1.8",
    "hwS-slow1.8",
    "hwW-slow1.3",
    "hw4-second1.8",
    "hw4-heavy-fourth",
    "tpD-slow1.3",
    "tpF-slow1.8",
    "tpIw-slow1.8",
    "tpZ-healthy",
    "tpZ-slow1.8",
    "tpS-lengths",
    "mc-slow3",
    "mcO-healthy",
    "mcV-slow1.3",
)

# Scenarios whose answer is wrong without an adaptation. An adaptation that neither a real job nor a
# job of the second physics needs is removed (tests/unit/analysis/replay/adaptations).
NEEDS: Final[Mapping[str, tuple[Name, ...]]] = {
    "hwC-gc": (Name.NESTED_GC,),
    "hwS-slow1.8": (Name.OVERLAPPING_STEPS,),
    "tpF-slow1.8": (Name.NESTED_COLLECTIVES,),
    "tpIw-slow1.8": (Name.LATE_ENDS,),
    "tpZ-healthy": (Name.REGULAR_DELAYS,),
    "tpZ-slow1.8": (Name.PLACEMENT,),
    # Idle transfers are 2 to 4 % of its time, but not in every run: refused without them, as
    # another test holds, unless what fits no neighbor is left out.
    "mcV-slow1.3": (Name.BLOCKING_TRANSFERS,),
}

# The scenarios that CI also records with the client's hooks in place of the workers'
# instrumentation.
HOOKED: Final = ("tpF-slow1.8", "tpZ-slow1.8", "mcO-slow1.8")


def run_fault(name: str) -> Fault:
    """Return the fault of a run: one of a scenario, or a reference's even share of the work."""
    if name.startswith(_EVEN):
        return EvenShare(float(name.removeprefix(_EVEN)))
    return _FAULTS[name]
