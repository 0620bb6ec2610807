from __future__ import annotations

import json
import subprocess
import sys

import pytest

# A program that frees 384 MiB of NumPy and as much of Arrow, and prints its memory before and after
# it returns free memory to the system.
DROPS = """
import json
import numpy as np, pyarrow as pa
from app.analysis.replay.engine.executors import keep_freed_memory
from app.sessions.receive import give_back, resident_bytes
assert keep_freed_memory()
many = [np.full(6 << 20, 1.0) for _ in range(8)]
top = np.full(1 << 20, 1.0)
other = np.frombuffer(pa.allocate_buffer(384 << 20), np.float64)
other[:] = 1.0
del many, other
few = give_back(above=1 << 40)
before = resident_bytes()
print(json.dumps([few, give_back(above=64 << 20), before, resident_bytes()]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc_trim is glibc's")
def test_a_large_process_returns_free_memory() -> None:
    run = subprocess.run(  # noqa: S603 - the test's own
        [sys.executable, "-c", DROPS], capture_output=True, text=True, check=True
    )
    few, large, before, after = json.loads(run.stdout)

    assert not few
    assert large
    assert before > 384 << 20
    assert after < 256 << 20
