"""A running job that sends its pulse, in which a rank becomes slow and recovers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob
from app.pulse.body import write_pulse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from app.analysis.pulse.columns import Pulses

# Number of steps in a body.
EACH = 5


@dataclass(slots=True)
class LiveJob:
    """A job on two hosts of eight ranks, whose bodies have the current time.

    Parameters
    ----------
    dials : PulseDials
        `steps` is the largest number of steps that the job can run.
    factor : float
        How many times as long `rank` computes while it is slow.
    """

    dials: PulseDials = field(
        default_factory=lambda: PulseDials(dp=8, pp=2, steps=4_000, step_s=0.1)
    )
    rank: int = 13
    factor: float = 1.5
    slow: bool = False
    step: int = 0
    _states: tuple[Pulses, Pulses] | None = None
    _hosts: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        job = PulseJob.healthy(self.dials, stream(3, "live"))
        healthy = job.rows()
        job.computing[:, self.rank] *= self.factor
        self._states, self._hosts = (healthy, job.rows()), job.hosts

    @property
    def hosts(self) -> dict[int, str]:
        """Return the host of each rank."""
        return self._hosts

    def bodies(self) -> Iterator[bytes]:
        """Run some steps in real time, and yield the body of each host."""
        assert self._states is not None
        rows = self._states[self.slow]
        now = rows.take((rows.step >= self.step) & (rows.step < self.step + EACH))
        spent_ns = np.array([now.step_ns[now.step == step].max() for step in np.unique(now.step)])
        time.sleep(float(spent_ns.sum()) / 1e9)
        ends_ns = time.time_ns() - spent_ns.sum() + np.cumsum(spent_ns)
        now = replace(now, time_ns=ends_ns[now.step - self.step] + now.rank * 2_000)
        self.step += EACH
        for name in sorted(set(self._hosts.values())):
            of_host = np.array([self._hosts[rank] == name for rank in now.rank.tolist()])
            yield write_pulse(now.take(of_host), name)

    def run_until(self, done: Callable[[], bool], send: Callable[[bytes], None]) -> None:
        """Run and send bodies until `done` returns true."""
        while not done():
            assert self.step + EACH <= self.dials.steps, "nothing came of it"
            for body in self.bodies():
                send(body)
