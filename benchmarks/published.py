"""Our report against the published analyzer's, on the same file in the same run.

The analyzer is named by the folder of its checkout; its interpreter needs its requirements. Whole
processes are compared, start to end, because that is how it is used: it writes the results of its
main program, without M_W, M_S and single workers, which are further programs; ours holds them all.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import yaml

from app.analysis.trace.metadata import metadata_document
from benchmarks.pairs import time_pairs
from benchmarks.traces import BenchTrace

_PAIRS: Final = 3


def measure_published(checkout: Path, python: str, traces: list[BenchTrace]) -> list[str]:
    """Return a line a trace with the times of both and the speed-up."""
    lines = []
    for trace in traces:
        with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
            lines.append(_line(checkout.resolve(), python, trace, Path(directory)))
    return lines


def _line(checkout: Path, python: str, trace: BenchTrace, directory: Path) -> str:
    meta = directory / "meta.yaml"
    meta.write_text(yaml.safe_dump(_published_keys(trace)), encoding="utf-8")
    theirs = [
        *(python, str(checkout / "analyzer" / "wia.py")),
        *("--metadata", str(meta), "--trace", str(trace.path)),
        *("--dump-dir", str(directory), "--root", str(directory)),
    ]
    ours = [
        sys.executable,
        "-m",
        "app.cli",
        "analyze",
        str(trace.path),
        "--meta",
        str(meta),
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    times = time_pairs(
        lambda _: _run(theirs, environment),
        lambda _: _run(ours, dict(os.environ)),
        pairs=_PAIRS,
    )
    return (
        f"{trace.name:<18} published {statistics.median(times.ours_s):.1f} s, "
        f"ours {statistics.median(times.base_s):.2f} s, speed-up {times.ratio:.0f}"
    )


def _run(command: list[str], environment: dict[str, str]) -> None:
    subprocess.run(command, check=True, env=environment, capture_output=True)  # noqa: S603 - ours


def _published_keys(trace: BenchTrace) -> dict[str, object]:
    sizes = metadata_document(trace.meta)
    return {
        "trial_name": "bench",
        "run_id": 0,
        "dsp_size": sizes["cp"],
        "world_size": sizes["world"],
        **{f"{name}_size": sizes[name] for name in ("dp", "pp", "tp", "vpp")},
    }
