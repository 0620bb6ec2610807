"""Launches scenarios, compares the product with them, and retries on a noisy machine."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

from tests.real_jobs.analyzing import answer
from tests.real_jobs.jobs import Job
from tests.real_jobs.judging import Judged, faults_of, not_run
from tests.real_jobs.launching import FORWARD_S, LaunchError, Measured, end_all, launch
from tests.real_jobs.scenarios import HEALTHY, Scenario
from tests.real_jobs.truth import NOISY_SPREAD, Truth, spread, truth_of

RETRIES: Final = 2
# Number of launches at the same time: they mostly sleep.
AT_ONCE: Final = 2
_KEEPING: Final = Lock()


@dataclass(slots=True)
class Retries:
    """The remaining retries of a run; a scenario may have one."""

    left: int = RETRIES
    _lanes: Lock = field(default_factory=Lock)

    def allow(self, result: Judged) -> bool:
        """Return whether a scenario may be run again, and count the retry.

        A retry is allowed only after a wrong answer, if the healthy runs of the launch show that
        the machine was too noisy.
        """
        noisy = result.noise is not None and result.noise > NOISY_SPREAD
        with self._lanes:
            allowed = not result.right and noisy and self.left > 0
            self.left -= allowed
        return allowed


@dataclass(slots=True)
class JobRunner:
    """Runs scenarios of one kind of job, one after another.

    Parameters
    ----------
    forward_s : float
        Time of a chunk's forward pass in a healthy job.
    keep : Path or None
        Folder that keeps recordings and their truths.
    retries : Retries
        Shared by all kinds of job of a run.
    hooked : bool
        Whether the client's hooks record, and not the workers themselves.
    """

    forward_s: float = FORWARD_S
    keep: Path | None = None
    retries: Retries = field(default_factory=Retries)
    hooked: bool = False

    def judge(self, job: Job, scenarios: Sequence[Scenario]) -> list[Judged]:
        """Return the results of scenarios of one kind of job, which share a launch."""
        try:
            runs = launch(job, runs_for(scenarios), self.forward_s, hooked=self.hooked)
            return [self._judge_one(scenario, runs) for scenario in scenarios]
        except LaunchError as error:
            return [not_run(scenario, str(error)) for scenario in scenarios]

    def _judge_one(self, scenario: Scenario, runs: Mapping[str, Measured]) -> Judged:
        judged = _judged(scenario, runs, self.keep)
        if not self.retries.allow(judged):
            return judged
        again = launch(scenario.job, runs_for([scenario]), self.forward_s, hooked=self.hooked)
        return _judged(scenario, again, self.keep, retried=True)


def judge_all(
    scenarios: Sequence[Scenario],
    runner: JobRunner,
    *,
    at_once: int,
    tell: Callable[[Judged], None] = lambda _: None,
) -> list[Judged]:
    """Return the results of all scenarios, in their order.

    Parameters
    ----------
    at_once : int
        Number of launches at the same time.
    tell
        Called with each result as soon as it exists.
    """
    by_job: dict[Job, list[Scenario]] = {}
    for scenario in scenarios:
        by_job.setdefault(scenario.job, []).append(scenario)

    def judge(job: Job) -> list[Judged]:
        results = runner.judge(job, by_job[job])
        for result in results:
            tell(result)
        return results

    with ThreadPoolExecutor(at_once) as lanes:
        try:
            # The longest launches first, so that none runs alone at the end.
            pending = {
                job: lanes.submit(judge, job)
                for job in sorted(by_job, key=lambda job: -len(by_job[job]))
            }
            return [result for job in by_job for result in pending[job].result()]
        except BaseException:
            lanes.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise


def runs_for(scenarios: Iterable[Scenario]) -> list[str]:
    """Return the runs of a launch for these scenarios: the healthy job, each reference once."""
    runs = [HEALTHY]
    for scenario in scenarios:
        runs += [scenario.reference, scenario.fault_name]
    return list(dict.fromkeys(runs))


def trace_of(
    scenario: Scenario, rows: Iterable[str], said: Mapping[str, Any] | None = None
) -> bytes:
    """Return a recording with its metadata as a trace in NDJSON.

    Parameters
    ----------
    said : mapping, optional
        The client's metadata, if it recorded, without the hosts, which are all the same.
    """
    job = scenario.job
    hosts = {str(rank): f"node-{rank}" for rank in range(job.world)}
    meta = _metadata(scenario) if said is None else dict(said)
    header = json.dumps({"schema": "paceline.trace/1", "meta": meta | {"hosts": hosts}})
    return "\n".join((header, *rows, "")).encode()


def _metadata(scenario: Scenario) -> dict[str, Any]:
    job = scenario.job
    meta: dict[str, Any] = {
        "dp": job.dp,
        "pp": job.pp,
        "tp": 1,
        "cp": 1,
        "vpp": job.chunks,
        "world": job.world,
    }
    if job.says_layers:
        meta["layers"] = [job.chunks * job.layers] * job.pp
    lengths = scenario.fault.lengths(job)
    if lengths is not None:
        meta["sequence_lengths"] = {str(step): lanes for step, lanes in lengths.items()}
    return meta


def _judged(
    scenario: Scenario, runs: Mapping[str, Measured], keep: Path | None, *, retried: bool = False
) -> Judged:
    measured = runs[scenario.fault_name]
    healthy = [runs[name].step_times_s for name in (HEALTHY, scenario.reference)]
    truth = truth_of(scenario, measured.step_times_s, healthy[-1])
    noise = max(map(spread, healthy))
    trace = trace_of(scenario, measured.rows, measured.meta)
    if keep is not None:
        _keep(keep, scenario, truth, trace, noise)
    said = answer(trace)
    return Judged(scenario, truth, said, faults_of(said, truth), noise, retried, trace)


def _keep(directory: Path, scenario: Scenario, truth: Truth, trace: bytes, noise: float) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{scenario.name}.ndjson.gz").write_bytes(gzip.compress(trace))
    told = {
        "job": scenario.job.says,
        "dp": scenario.job.dp,
        "pp": scenario.job.pp,
        "fault": scenario.fault.says,
        "cause": truth.cause,
        "worker": None if truth.worker is None else [truth.worker.dp, truth.worker.pp],
        "stage": None if truth.worker is not None else truth.stage,
        "true_slowdown": round(truth.slowdown, 4),
        "healthy_spread": round(noise, 4),
    }
    path = directory / "truth.json"
    with _KEEPING:
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | {scenario.name: told}, indent=1))
