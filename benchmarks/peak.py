"""A process that does one thing and prints the most memory it had resident, in bytes."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import pyarrow as pa

from benchmarks.analysis import run_once


def peak_bytes() -> int:
    """Return the peak resident memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not getrusage: on Linux its value survives exec, so that it would be the parent's peak.
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    pa.set_cpu_count(1)
    run_once(sys.argv[1], Path(sys.argv[2]), sys.stdin.read())
    print(peak_bytes())
