"""A profiler's file of any size is read in bounded memory: plain, and compressed.

By day the file has some megabytes, every night hundreds; ``PACELINE_LARGE_MB=1000`` sets the size.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from io import BufferedWriter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.nightly import BY_NIGHT
from tests.unit.analysis.trace.recordings.kineto_files import KinetoFile, two_stages

MB: Final = 1_000_000
MB_BY_DAY, MB_BY_NIGHT = 12, 300
SIZE: Final = MB * int(
    os.environ.get("PACELINE_LARGE_MB") or (MB_BY_NIGHT if BY_NIGHT else MB_BY_DAY)
)
STEPS: Final = 8
FIRST_NS: Final = 4_459_370_929_637_969
# Memory of a reader in addition to a share of the file: its buffers, and Arrow's.
BUFFERS_B: Final = 60 * MB
# The share of the file that is kept: some bytes of each kernel and operator.
SHARE: Final = 0.06
READ = """
import json, re, sys
from pathlib import Path
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
def peak():
    # What `getrusage` says counts that of the process which started this one.
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024
small, large = map(Path, sys.argv[1:])
decode(small, None, limits=Limits(), local=True)
before = peak()
read = decode(large, None, limits=Limits(), local=True)
print(json.dumps({"operations": len(read.trace), "more_bytes": peak() - before}))
"""


def write(file: gzip.GzipFile | BufferedWriter, size: int) -> None:
    """Write a file of a given size in pieces: few labels, many operators and kernels."""
    whole = two_stages(0, steps=STEPS)
    head, _, tail = whole.body().partition(b'"traceEvents":[')
    file.write(head + b'"traceEvents":[')
    written = 0
    number = 0
    while written < size:
        between = KinetoFile(rank=0)
        for _ in range(1000):
            number += 1
            at = FIRST_NS + number * 37_003 % (STEPS * 100_000_000)
            args: dict[str, Any] = {
                "External_id": number,
                "Input_Dims": [[4096, 4096], [4096, 11008]],
            }
            between.add("aten::mm", at, 900, cat="cpu_op", **args)
            between.add("cudaLaunchKernel", at, 400, cat="cuda_runtime", correlation=number)
            between.add("ampere_bf16_s1688", at, 800, cat="kernel", tid=20, correlation=number)
        text = ",".join(between.events).encode() + b","
        written += file.write(text)
    file.write(tail)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
def test_a_large_file_is_read_in_bounded_memory(tmp_path: Path, *, compressed: bool) -> None:
    small = tmp_path / "small.json"
    small.write_bytes(two_stages(0).body())
    large = tmp_path / ("large.json.gz" if compressed else "large.json")
    with gzip.GzipFile(large, "wb", 1) if compressed else large.open("wb") as file:
        write(file, SIZE)
    read = subprocess.run(  # noqa: S603 - our own
        [sys.executable, "-c", READ, str(small), str(large)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(read.stdout)
    print(f"{large.name} of {SIZE // MB} MB: {found['more_bytes'] / MB:.0f} MB more")  # noqa: T201

    # A forward and a backward pass of three microbatches in each step; transfers have no kernels
    # here.
    assert found["operations"] >= STEPS * 3 * 2
    assert found["more_bytes"] < BUFFERS_B + SHARE * SIZE
