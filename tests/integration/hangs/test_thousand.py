"""1,024 dumps of a megabyte are read in bounded memory, by the command and by a worker."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import zstandard
from sqlalchemy import select

from app.platform.database.task_runs import READ_HANG, TaskRun
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from tests.support.hanging import THOUSAND, THOUSAND_CULPRIT, thousand_dumps
from tests.support.nightly import by_night

if TYPE_CHECKING:
    import httpx
    import pytest

    from app.platform.container import Container

MOST_MIB = 300
SAID = f"{THOUSAND - 1} ranks wait for rank {THOUSAND_CULPRIT}."
# A program that runs the command and prints its peak memory, without its parent's.
COMMAND = """
import sys
from pathlib import Path

from app.cli.main import main

try:
    main()
finally:
    sys.stderr.write(Path("/proc/self/status").read_text())
"""


def told(capsys: pytest.CaptureFixture[str], who: str, seconds: float, peak_mib: float) -> None:
    """Print the peak memory."""
    with capsys.disabled():
        print(f"\n1,024 dumps, {who}: {seconds:.0f} s, {peak_mib:.0f} MiB")  # noqa: T201


def memory_mib(what: str, status: str = "") -> float:
    """Return a memory figure of a process in MiB, by default of this one."""
    found = re.search(rf"{what}:\s+(\d+)", status or Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


@by_night
def test_the_command_reads_a_folder_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    for name, body in thousand_dumps():
        (folder / name).write_bytes(body)
    began_s = time.monotonic()
    said = subprocess.run(  # noqa: S603 - our own
        [sys.executable, "-c", COMMAND, "hang", str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    peak_mib = memory_mib("VmHWM", said.stderr)
    told(capsys, "the command", time.monotonic() - began_s, peak_mib)
    assert said.stdout.startswith(SAID)
    assert peak_mib < MOST_MIB


@by_night
def test_a_worker_reads_an_archive_of_them(
    client: httpx.Client, container: Container, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = io.BytesIO()
    with (
        zstandard.ZstdCompressor().stream_writer(packed, closefd=False) as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as archive,
    ):
        for name, body in thousand_dumps():
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    began_s = time.monotonic()
    answer = client.post("/api/v1/jobs/moe/hangs", content=packed.getvalue(), timeout=600)
    assert answer.status_code == 202, answer.text
    sent_s = time.monotonic() - began_s
    with container.reading() as tx:
        [run] = tx.session.execute(select(TaskRun.id).where(TaskRun.kind == READ_HANG)).scalars()
    # Resets the peak memory.
    Path("/proc/self/clear_refs").write_text("5")
    before_mib = memory_mib("VmRSS")
    assert execute(container, LeaseKeeper(container), run)
    took_s = time.monotonic() - began_s - sent_s
    told(capsys, f"a worker (sent in {sent_s:.0f} s)", took_s, memory_mib("VmHWM") - before_mib)
    [hang] = client.get("/api/v1/jobs/moe/hangs").json()["hangs"]
    assert hang["sentence"].startswith(SAID)
    assert memory_mib("VmHWM") - before_mib < MOST_MIB
