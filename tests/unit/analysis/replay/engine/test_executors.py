from __future__ import annotations

import json
import subprocess
import sys

import pytest

# A program that writes 16 MiB repeatedly, and prints the number of its page faults.
PROGRAM = """
import json, resource, sys
import numpy as np
from app.analysis.replay.engine.executors import keep_freed_memory
kept = sys.argv[1] == "kept" and keep_freed_memory()
def write():
    np.full(1 << 20, 1.0), np.full(1 << 20, 1.0)
for _ in range(3):
    write()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    write()
print(json.dumps([kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before]))
"""


def pages(how: str) -> tuple[bool, int]:
    run = subprocess.run(  # noqa: S603 - the test's own
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
    )
    kept, count = json.loads(run.stdout)
    return kept, count


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_the_next_arrays_take_the_memory_of_the_last_ones() -> None:
    kept, count = pages("kept")

    assert kept
    # Without reuse of memory, each of the 20 rounds would cause 4,096 faults of 4 KiB, or 8 of 2
    # MiB.
    assert count < 20
    assert pages("plain")[1] > 2 * count + 20
