"""The demo's live job: ``python -m app.cli.demo.live --url URL``.

The job sends its pulse like an attached job. Within a minute one of its ranks becomes slow; the job
records a session when the server requests one, and becomes healthy soon after. It runs in its own
process until the demo ends.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from app.analysis.pulse.columns import joined
from app.analysis.synthesis.fleet_history import host_name
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import CostModel, JobModel, stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.formats.own import PARQUET
from app.analysis.trace.metadata import metadata_document
from app.analysis.trace.model import Sizes
from app.cli.server import Body, Server, ServerError
from app.incidents.models.rules import DEMO_LABELS
from app.platform.database.states import SessionState
from app.platform.processes import follow_lifeline
from app.pulse.body import write_pulse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.analysis.pulse.columns import Pulses


JOB: Final = "live-13b"
_DP: Final = 8
_PP: Final = 2
# DP rank and stage of the rank that becomes slow, and the factor of its compute times.
_SLOW: Final = (5, 1)
FACTOR: Final = 1.5
# A fixed number of steps is drawn once and then repeated.
_DRAWN: Final = 512
_FIRST_HOST: Final = 990
_HOST_RANKS: Final = 8
_DAY_S: Final = 86_400
_LABELS: Final = {"team": "research", "owner": "foundation", **DEMO_LABELS}
# Pulses are lost while the server is unavailable, as for attached jobs.
_LOOK_S: Final = 0.5
_NICE: Final = 10


@dataclass(frozen=True, slots=True)
class Tempo:
    """Times of the events of the running job.

    Parameters
    ----------
    step_s : float
        Approximate duration of a step.
    quiet_steps, slow_steps : int
        Number of steps before a rank becomes slow, and the maximum number of steps for which it
        remains slow; both counts restart at a requested session.
    hold_steps : int
        Number of steps for which it remains slow after its session was analyzed.
    every_s : float
        Interval between two bodies of a host.
    """

    step_s: float = 0.42
    quiet_steps: int = 110
    slow_steps: int = 300
    hold_steps: int = 20
    every_s: float = 5.0


@dataclass(slots=True)
class LiveJob:
    """The running job; `advance` sends its steps up to a time.

    Parameters
    ----------
    began_ns : int
        Start of its first step, ns since the epoch.
    """

    server: Server
    tempo: Tempo
    began_ns: int
    step: int = 0
    slow: bool = False
    session: str = ""
    """Number of steps that were sent."""
    _first: int = 0
    _ends_ns: int = 0
    _heals: int = 0
    _records: int | None = None
    _waits: bool = False
    _states: tuple[Pulses, Pulses] = field(init=False)
    hosts: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        dials = PulseDials(dp=_DP, pp=_PP, steps=_DRAWN, step_s=self.tempo.step_s)
        job = PulseJob.healthy(dials, stream(3, "live"))
        healthy = job.rows()
        job.computing[:, _SLOW[1] * _DP + _SLOW[0]] *= FACTOR
        self._states = healthy, job.rows()
        self.hosts = {
            rank: host_name(_FIRST_HOST + rank // _HOST_RANKS) for rank in range(dials.world)
        }
        # A later start on the same day continues the step numbers.
        seconds = self.began_ns / 1e9 % _DAY_S
        self.step = self._first = int(seconds / self.tempo.step_s)
        self._heals = self._first + self.tempo.quiet_steps + self.tempo.slow_steps
        self._ends_ns = self.began_ns

    def advance(self, now_ns: int) -> None:
        """Send the steps that have ended by now; record sessions, start and end the slowness.

        Raises
        ------
        ServerError
            The server is unavailable, or refuses a body.
        """
        begin_ns = self._ends_ns
        while begin_ns < now_ns:
            # Sent in short batches, so that no host is further ahead of the others than in attached
            # jobs.
            begin_ns = min(now_ns, begin_ns + int(self.tempo.every_s * 1e9))
            self._send_all(list(self._run(begin_ns)))
        if self._records is not None and self.step >= self._records:
            self._records = None
            self._heals = self.step + self.tempo.slow_steps
            self._record()
        elif self._waits and not self._is_underway():
            self._waits = False
            self._heals = min(self._heals, self.step + self.tempo.hold_steps)

    def _run(self, now_ns: int) -> Iterator[Pulses]:
        """Yield the rows of each step."""
        while True:
            slow_from = self._first + self.tempo.quiet_steps
            self.slow = slow_from <= self.step < self._heals
            rows = self._states[self.slow]
            rows = rows.take(rows.step == self.step % _DRAWN)
            ends_ns = self._ends_ns + int(rows.step_ns.max())
            if ends_ns > now_ns:
                return
            self._ends_ns = ends_ns
            yield replace(
                rows,
                step=np.full(len(rows), self.step),
                time_ns=ends_ns + rows.rank * 2_000,
            )
            self.step += 1

    def _send_all(self, parts: list[Pulses]) -> None:
        """Send steps, one body for each host."""
        if not parts:
            return
        rows = joined(parts)
        for host in sorted(set(self.hosts.values())):
            own = np.array([self.hosts[rank] == host for rank in rows.rank.tolist()])
            body = json.loads(write_pulse(rows.take(own), host))
            answer = self.server.exchange("POST", f"/api/v1/jobs/{JOB}/attempts/1/pulse", body)
            if answer["record"] is not None and self._records is None:
                self._records = self.step + int(answer["record"]["steps"])
                # A requested session is recorded with the present durations.
                self._heals = max(self._heals, self._records)

    def _record(self) -> None:
        """Send a session of the requested steps."""
        costs = CostModel(
            forward_ns=12e6, backward_ns=24e6, params_ns=8e6, grads_ns=15e6, optimizer_ns=8e6
        )
        job = JobModel(
            Sizes(dp=_DP, pp=_PP), microbatches=8, steps=50, consecutive=True, costs=costs
        )
        faults = [SlowWorker(_SLOW, FACTOR)] if self.slow else []
        trace = synthesize(job, faults, seed=self.step).trace
        meta = metadata_document(replace(trace.meta, hosts=self.hosts, labels=_LABELS))
        content = to_parquet(trace)
        sent = self.server.send(
            JOB,
            lambda: Body(io.BytesIO(content), PARQUET.media_types[0], "trace.parquet"),
            Body(json.dumps(meta).encode(), "application/json"),
            lambda _words: None,
        )
        self.session, self._waits = sent.session, True

    def _is_underway(self) -> bool:
        """Return whether the analysis of the job's session is pending."""
        state = self.server.get(f"/api/v1/sessions/{self.session}")["state"]
        return state in SessionState.UNDERWAY


def run_live(url: str, tempo: Tempo) -> None:
    """Run the job until the process ends."""
    with Server(url) as server:
        job = LiveJob(server, tempo, time.time_ns())
        while True:
            time.sleep(tempo.every_s)
            try:
                job.advance(time.time_ns())
            except ServerError:
                # The server is unavailable or overloaded: the unsent pulses are dropped, like any
                # late pulse.
                time.sleep(_LOOK_S)


def main() -> None:
    """Run the live job of a demo."""
    parser = argparse.ArgumentParser(prog="python -m app.cli.demo.live", description=__doc__)
    parser.add_argument("--url", required=True)
    follow_lifeline()
    os.nice(_NICE)
    run_live(parser.parse_args().url, Tempo())


if __name__ == "__main__":
    main()
