"""Named jobs as their hosts run them, each in one way that the paper's model has not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from app.analysis.synthesis.hosts.job import HostJob, Posting
from app.analysis.synthesis.hosts.session import HostSession, run
from app.analysis.synthesis.randomness import stream

_MS: Final = 1e6
_FACTOR: Final = 1.8


@dataclass(frozen=True, slots=True)
class HostScenario:
    """A job as its hosts run it; one of its workers is slow, or it collects garbage."""

    name: str  # as in ``paceline synth NAME``
    summary: str  # one sentence for a person
    job: HostJob
    stage: int | None = None  # where the slow worker is; anywhere where not given

    def synthesize(self, seed: int, fault_seed: int | None = None) -> HostSession:
        """Return the scenario's session; equal seeds give equal sessions.

        Parameters
        ----------
        fault_seed : int, optional
            What draws the worker at fault; `seed` where not given.
        """
        rng = stream(seed if fault_seed is None else fault_seed, "scenario", self.name)
        drawn = int(rng.integers(self.job.pp))
        worker = (int(rng.integers(self.job.dp)), drawn if self.stage is None else self.stage)
        factors = {} if self.job.pauses else {worker: _FACTOR}
        return run(replace(self.job, factors=factors, seed=seed, name=self.name))


_PLAIN: Final = HostJob(
    dp=4,
    pp=4,
    microbatches=12,
    steps=12,
    noise=0.01,
    worker_noise=0.003,
    wire_noise=0.05,
)

_SCENARIOS: Final = (
    HostScenario(
        "blocking-transfers",
        "A slow worker; hosts wait for each transfer, which takes 20 ms.",
        replace(_PLAIN, wire_ns=20 * _MS),
    ),
    HostScenario(
        "windowed-transfers",
        "A slow worker on the first stage; receives are posted two microbatches ahead.",
        replace(_PLAIN, wire_ns=15 * _MS, posting=Posting.WINDOWED, window=2),
        # late data hides that it comes while other things run
        stage=0,
    ),
    HostScenario(
        "overlapping-steps",
        "A slow worker; nothing ends a step on all stages together.",
        replace(_PLAIN, barrier=False),
    ),
    HostScenario(
        "nested-gathers",
        "A slow worker; computations wait inside for parameters, as with FSDP.",
        replace(_PLAIN, gathers=True),
    ),
    HostScenario(
        "nested-collections",
        "Garbage is collected inside of forwards, and recorded there.",
        replace(_PLAIN, pause_ns=220 * _MS, pauses=0.02),
    ),
    HostScenario(
        "late-ends",
        "A slow worker; sends are recorded until the step's end.",
        replace(_PLAIN, late_ends=True),
    ),
    HostScenario(
        "handover-delays",
        "A slow worker; computations begin 4 ms after their input, and transfers are not recorded.",
        replace(_PLAIN, handover_ns=4 * _MS, transfers=False, wire_ns=0.0),
    ),
    HostScenario(
        "v-shaped",
        "A slow worker; microbatches turn back at the last stage.",
        replace(_PLAIN, v_shaped=True),
    ),
)

# What the paper's dependency model has not.
HOST_SCENARIOS: Final[Mapping[str, HostScenario]] = {
    scenario.name: scenario for scenario in _SCENARIOS
}
