"""Launches training scripts, and returns each recording with the expected answer."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from tests.real_jobs.launching import ROOT, torch_python
from tests.real_jobs.unlabelled.jobs import Kind, Trouble, Window, windows_of

_LIMIT_S: Final = 400


@dataclass(frozen=True, slots=True)
class Recording:
    """The files of one window, and measurements outside of the profiler.

    Parameters
    ----------
    files : tuple of Path
        One for each rank.
    slowdown : float
        Step time over that of the healthy windows before and after, each the median.
    noise : float
        Spread of the steps of these healthy windows, relative to their median, without the longest
        and the shortest.
    """

    kind: Kind
    window: Window
    files: tuple[Path, ...]
    slowdown: float
    noise: float

    @property
    def name(self) -> str:
        """Kind and trouble."""
        return f"{self.kind.value}-{self.window.trouble.value}"


def launch(kinds: Sequence[Kind], directory: Path) -> Mapping[str, Recording]:
    """Run these kinds one after the other and return their recordings by name.

    Of several healthy windows the second is returned, because the job still warms up in the first.
    """
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        # One thread for each process, because many processes share few processors.
        "OMP_NUM_THREADS": "1",
        # By default, PyTorch would leave a folder in another place.
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
    }
    if Path("/sys/class/net/lo").exists():
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    names = ",".join(kind.value for kind in kinds)
    ran = subprocess.run(  # noqa: S603 - our own module
        [torch_python(), "-m", "tests.real_jobs.unlabelled.train", names, str(directory)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    found = [
        _recording(kind, window, directory / kind.value)
        for kind in kinds
        for window in windows_of(kind)[1:]
    ]
    return {recording.name: recording for recording in reversed(found)}


def _recording(kind: Kind, window: Window, directory: Path) -> Recording:
    ranks = range(kind.world)
    ends = [json.loads((directory / f"ends-{rank}.json").read_text()) for rank in ranks]
    ends_ns = [max(one) for one in zip(*ends, strict=True)]
    times_s = [0.0, *((end - start) / 1e9 for start, end in pairwise(ends_ns))]
    healthy = [
        times_s[step]
        for other in windows_of(kind)
        if other.trouble is Trouble.NONE and abs(other.number - window.number) == _apart(window)
        for step in other.steps
    ]
    usual_s = median(healthy)
    inner = sorted(healthy)[1:-1]
    files = tuple(directory / window.name / f"rank{rank}.pt.trace.json" for rank in ranks)
    return Recording(
        kind,
        window,
        files,
        median(times_s[step] for step in window.steps) / usual_s,
        (inner[-1] - inner[0]) / usual_s,
    )


def _apart(window: Window) -> int:
    """Return the relative difference of the healthy windows to which a window is compared."""
    return 2 if window.trouble is Trouble.NONE else 1
