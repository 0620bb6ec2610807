"""Jobs in the structures of the frameworks' tutorials, from `examples/`.

Each is launched once, trains in turns of few steps healthy and with a slow rank, and records itself
when its steps ended. Its client has no server: the shares are in the spool.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.real_jobs.analyzing import Answer, answer
from tests.real_jobs.jobs import Place
from tests.real_jobs.launching import ROOT, joined, torch_python
from tests.real_jobs.truth import NOISY_SPREAD, spread
from tests.real_jobs.worker.attached import NOWHERE

LIMIT_S: Final = 240
SLOW_RANK: Final = 1
FACTOR: Final = 1.5
# Largest headline of a healthy job.
HEALTHY_AT_MOST: Final = 1.05
WITHIN: Final = 0.05
# The first recorded step, as in `examples/common.py`.
_CONNECT_STEPS: Final = 4
_STEPS: Final = 15
_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Tutorial:
    """A script of `examples/`, and how it is run.

    Parameters
    ----------
    stages : bool
        Whether its ranks are pipeline stages, not data-parallel: a slow rank may be a heavy stage.
    """

    script: str
    options: tuple[str, ...] = ()
    package: str = "torch"
    stages: bool = False

    @property
    def missing(self) -> str | None:
        """Return the package that is not installed; None if the tutorial can run."""
        packages = ("torch", self.package)
        return next((name for name in packages if importlib.util.find_spec(name) is None), None)


TUTORIALS: Final[Mapping[str, Tutorial]] = {
    "ddp": Tutorial("ddp_clipping"),
    "fsdp2": Tutorial("fsdp2", ("--ranks", "2", "--steps", "30", "--pace", "2")),
    "slow steps": Tutorial("ddp_clipping", ("--pace", "6", "--steps", "6")),
    "short steps": Tutorial("short_steps", ("--steps", "198")),
    "accumulation": Tutorial("accumulation"),
    "hugging face": Tutorial("hugging_face", package="transformers"),
    "deepspeed": Tutorial("deepspeed_zero", package="deepspeed"),
    "accelerate": Tutorial("accelerate_ddp", ("--pace", "0.6"), package="accelerate"),
    # Steps of a pipeline overlap, so there is a single change from healthy to slow.
    "1f1b": Tutorial("pipeline_1f1b", ("--pace", "0.6", "--turn", "15"), stages=True),
    "pipeline and ddp": Tutorial("torch_pipelining", ("--pace", "0.6", "--turn", "15")),
}


@dataclass(frozen=True, slots=True)
class Told:
    """The measurements of one launch, and the product's answers.

    Parameters
    ----------
    slowdown : float
        Step time of the slowed steps over that of the healthy ones, each a mean without the
        shortest and the longest quarter, because single late steps are chance.
    noise : float
        Spread of the healthy steps.
    """

    slowdown: float
    noise: float
    healthy: Answer
    slowed: Answer

    @property
    def noisy(self) -> bool:
        """Return whether the healthy steps show that the machine was busy."""
        return self.noise > NOISY_SPREAD


def run(tutorial: Tutorial) -> Told:
    """Launch a tutorial, and return the answers to both of its sessions."""
    with TemporaryDirectory(prefix="paceline-tutorial-") as name:
        folder = Path(name)
        slow = ("--slow", f"{SLOW_RANK}:{FACTOR}", "--compare", name, "--server", NOWHERE)
        script = ROOT / "examples" / f"{tutorial.script}.py"
        ran = subprocess.run(  # noqa: S603 - our own script
            [torch_python(), str(script), *slow, *tutorial.options],
            env=_environment(folder),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-4000:]
        return _told(folder)


def _environment(folder: Path) -> dict[str, str]:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "client" / "src"),
        "PACELINE_SPOOL": str(folder / "spool"),
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "HF_HOME": str(folder / "hugging-face"),
        "HF_HUB_OFFLINE": "1",
    }
    if Path("/sys/class/net/lo").exists():
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    return environment


def _told(folder: Path) -> Told:
    ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("times-*.json"))]
    ends_ns = [max(ends) for ends in zip(*(rank["ends_ns"] for rank in ranks), strict=True)]
    kinds: tuple[list[int], list[int]] = (ranks[0]["healthy"], ranks[0]["slowed"])
    healthy_s, slowed_s = (
        [(ends_ns[step] - ends_ns[step - 1]) / 1e9 for step in steps] for steps in kinds
    )
    slowdown = _typical_s(slowed_s) / _typical_s(healthy_s)
    traces = (_trace(folder / "spool", frozenset(steps)) for steps in kinds)
    return Told(slowdown, spread(healthy_s), *map(answer, traces))


def _typical_s(step_times_s: Sequence[float]) -> float:
    quarter = len(step_times_s) // 4
    return mean(sorted(step_times_s)[quarter : len(step_times_s) - quarter])


def _trace(spool: Path, steps: Collection[int]) -> bytes:
    """Return some steps, joined as the server joins a session."""
    metas: list[Mapping[str, Any]] = []
    rows: list[str] = []
    for path in sorted(spool.rglob("*.share")):
        content = path.read_bytes()
        header, *operations = gzip.decompress(content[content.index(_GZIP) :]).decode().splitlines()
        if operations:
            metas.append(json.loads(header)["meta"])
        rows += [one for one in operations if json.loads(one)["step"] in steps]
    head = json.dumps({"schema": "paceline.trace/1", "meta": joined(metas)})
    return "\n".join((head, *rows, "")).encode()


def faults_of(tutorial: Tutorial, told: Told) -> list[str]:
    """Return the faults of the answers; empty if they are right."""
    healthy, slowed = told.healthy, told.slowed
    wrong = [
        f"{name}: {answer.refused or f'no verdict, {answer.discrepancy:.1%} off'}"
        for name, answer in (("healthy", healthy), ("slowed", slowed))
        if not answer.verdict
    ]
    if healthy.headline > HEALTHY_AT_MOST:
        wrong.append(f"healthy: {healthy.headline:.3f}")
    if abs(slowed.headline / told.slowdown - 1) > WITHIN:
        wrong.append(f"slowed: {slowed.headline:.3f} for {told.slowdown:.3f}")
    first = slowed.causes[0] if slowed.causes else None
    place = Place(0, SLOW_RANK) if tutorial.stages else Place(SLOW_RANK, 0)
    if first is None or first.name != "slow_worker" or place not in first.workers[:1]:
        wrong.append(f"slowed: {first}")
    return wrong
