"""`paceline analyze` on a small trace, against importing NumPy and pyarrow; `make bench` runs this.

Processor time of whole processes run in turns, so that other processes hardly count. Modules are
compiled, as pip compiles what it installs.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.metadata import metadata_document
from app.analysis.trace.model import Sizes

_PAIRS: Final = 9
_JOB: Final = JobModel(sizes=Sizes(dp=2, pp=2), steps=6, microbatches=4)


def measure_small_trace() -> str:
    """Return the ratio of both, for a person."""
    trace = synthesize(_JOB, seed=1).trace
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        path, meta = Path(directory) / "trace.parquet", Path(directory) / "meta.yaml"
        path.write_bytes(to_parquet(trace))
        meta.write_text(yaml.safe_dump(metadata_document(trace.meta)), encoding="utf-8")
        command = ("-m", "app.cli.main", "analyze", str(path), "--meta", str(meta), "--json")
        least = ("-c", "import numpy, pyarrow")
        # files are in memory and compiled after the first of each
        _processor_s(command)
        _processor_s(least)
        pairs = [(_processor_s(command), _processor_s(least)) for _ in range(_PAIRS)]
    ours, base = (statistics.median(times) * 1e3 for times in zip(*pairs, strict=True))
    ratio = statistics.median(ours / base for ours, base in pairs)
    return (
        f"{len(trace):,} operations: importing NumPy and pyarrow {base:.0f} ms, "
        f"paceline analyze {ours:.0f} ms, ratio {ratio:.1f}"
    )


def _processor_s(arguments: Sequence[str]) -> float:
    """Return the processor time of an interpreter with these arguments."""
    before = _children_s()
    subprocess.run(  # noqa: S603 - this interpreter and our own program
        [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=_compiling()
    )
    return _children_s() - before


def _compiling() -> dict[str, str]:
    """Return the environment, where interpreters keep what they compile whatever was set here."""
    return {name: to for name, to in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    print(measure_small_trace())
