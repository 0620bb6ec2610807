"""The demo's tensor-parallel groups: they report times as a training job does, and apply plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from app.analysis.synthesis.synthesize import SyntheticSession
from app.cli.server import Server, ServerError

# Step time of a rank without delay, and the share of matrix multiplications in it.
_HEALTHY_S: Final = 1.30
_MATMUL: Final = 0.85
_NOISE: Final = 0.004
# Part of a step that is not work of the slowest rank.
_OUTSIDE_S: Final = 0.21
_COLUMNS: Final = 8192
_MAX_GAMMA: Final = 0.25

_FIRST_STEP: Final = 18_300
# Steps of a light straggler that disappears again; the first step of the sessions' straggler.
_PASSING: Final = range(_FIRST_STEP + 12, _FIRST_STEP + 40)
_LASTING_FROM: Final = _FIRST_STEP + 60
_APPLIED_FROM: Final = _FIRST_STEP + 30
_ADVISED_FROM: Final = _FIRST_STEP + 44
_APPLIED_AGAIN_FROM: Final = _FIRST_STEP + 86
_LAST_STEP: Final = _FIRST_STEP + 120
_PASSING_SLOWNESS: Final = 1.2
_SWITCHES: Final = {
    _APPLIED_FROM: ("apply", "on call"),
    _ADVISED_FROM: ("advise", "on call"),
    _APPLIED_AGAIN_FROM: ("apply", "on call"),
}
# Steps that the group without a straggler reports.
_EVEN_STEPS: Final = range(_LAST_STEP - 11, _LAST_STEP + 1)

_COSTS: Final = {
    "communicate": [[512, 0.011], [4096, 0.031]],
    "allocate": [[1024, 0.001]],
    "extract": [[1024, 0.003], [4096, 0.006]],
}
_SIZES: Final = {"kind": "hidden_unit", "width": 8192, "tokens": 24_576, "layers": 13}


@dataclass
class _Group:
    """A group of the job and its current plan."""

    server: Server
    job: str
    name: str
    ranks: list[int]
    hosts: list[str]
    rng: np.random.Generator
    shares: list[dict[str, Any]] | None = None
    version: int | None = None
    known_version: int = 0

    @property
    def path(self) -> str:
        return f"/api/v1/jobs/{quote(self.job, safe='')}/tp/{self.name}"

    def is_known(self) -> bool:
        """Return whether the group has reported at an earlier start of the demo."""
        try:
            self.server.get(f"{self.path}/plan?attempt=1&after=0&wait_s=0")
        except ServerError as error:
            return error.stable_code != "not_found"
        return True

    def step(self, number: int, slowness: dict[int, float]) -> None:
        """Run a step, report it, and apply the plan that the server returns."""
        size = len(self.ranks)
        slow = np.array([slowness.get(rank, 1.0) for rank in range(size)])
        noise = 1 + self.rng.normal(0, _NOISE, size)
        matmul_s = _MATMUL * _HEALTHY_S * slow * noise * self._computed()
        time_s = matmul_s + (1 - _MATMUL) * _HEALTHY_S
        if self.shares is not None:
            time_s += [0.004 * (share["resized_columns"] > 0) for share in self.shares]
        answer = self.server.exchange(
            "POST",
            f"{self.path}/timings",
            {
                "attempt": 1,
                "world_size": size,
                "columns": _COLUMNS,
                "max_gamma": _MAX_GAMMA,
                "apply": True,
                "step": number,
                "times_s": time_s.tolist(),
                "matmul_s": matmul_s.tolist(),
                "measured_step_s": float(time_s.max()) + _OUTSIDE_S,
                "plan_version": self.version,
                "known_version": self.known_version,
                "ranks": self.ranks,
                "hosts": self.hosts,
                "costs": _COSTS,
                "sizes": _SIZES,
            },
        )
        if answer["plan"] is not None:
            self._take(answer["plan"], number + 1)

    def look(self, number: int) -> None:
        """Report and apply the plan that follows from a switched mode."""
        plan = self.server.get(f"{self.path}/plan?attempt=1&after={self.known_version}&wait_s=0")
        if plan:
            self._take(plan, number)

    def _computed(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        if self.shares is None:
            return np.ones(len(self.ranks))
        done = [
            _COLUMNS - share["resized_columns"] - share["migrated_columns"]
            + share["received_columns"]
            for share in self.shares
        ]  # fmt: skip
        return np.array(done) / _COLUMNS

    def _take(self, plan: dict[str, Any], step: int) -> None:
        self.known_version = plan["version"]
        if not plan["apply"]:
            return
        self.shares, self.version = plan["ranks"], plan["version"]
        acknowledgement = {
            "attempt": 1,
            "step": step,
            "ranks": list(range(len(self.ranks))),
            "applied": True,
        }
        self.server.exchange("POST", f"{self.path}/plan/{self.known_version}/ack", acknowledgement)


def report_groups(server: Server, session: SyntheticSession) -> None:
    """Report two tensor-parallel groups of a job: a group with its straggler, and a healthy group.

    Groups that have reported before are skipped.
    """
    (dp, pp), slow, factor = _straggler(session)
    stages = session.trace.meta.sizes.pp
    rng = np.random.default_rng(0)
    straggling = _group(server, session, (dp, pp), rng)
    even = _group(server, session, (dp, (pp + 1) % stages), rng)
    if straggling.is_known():
        return
    for number in range(_FIRST_STEP, _LAST_STEP + 1):
        slowness = {}
        if number in _PASSING:
            slowness = {(slow + 1) % len(straggling.ranks): _PASSING_SLOWNESS}
        elif number >= _LASTING_FROM:
            slowness = {slow: factor}
        if number in _SWITCHES:
            mode, by = _SWITCHES[number]
            body = {"mode": mode, "by": by}
            server.exchange("PUT", f"/api/v1/jobs/{quote(session.job.name, safe='')}/tp/mode", body)
            straggling.look(number)
        straggling.step(number, slowness)
        if number in _EVEN_STEPS:
            even.step(number, {})


def _straggler(session: SyntheticSession) -> tuple[tuple[int, int], int, float]:
    """Return the group of a session's straggler, its rank in the group, and its slowdown."""
    said = session.truth.injections[0]
    dp, pp = said["worker"]
    return (dp, pp), int(said["tensor_rank"]), float(said["factor"])


def _group(
    server: Server, session: SyntheticSession, worker: tuple[int, int], rng: np.random.Generator
) -> _Group:
    trace = session.trace
    own = (trace.dp == worker[0]) & (trace.pp == worker[1])
    ranks = np.unique(trace.rank[own]).tolist()
    hosts = [trace.meta.hosts[rank] for rank in ranks]
    return _Group(server, session.job.name, f"{worker[0]}-{worker[1]}", ranks, hosts, rng)
