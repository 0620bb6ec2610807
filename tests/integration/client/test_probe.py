"""Probes of this machine, sent to a server; of its processors if there is no GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paceline_client.probe import ProbeError, probe
from tests.conftest import skip_or_fail
from tests.integration.client.conftest import environment
from tests.real_jobs.jobs import Framework
from tests.real_jobs.launching import missing, torch_python
from tests.support.nightly import by_night, every_night

if TYPE_CHECKING:
    import httpx

_QUICK = ("--seconds", "0.1")


@pytest.fixture(autouse=True)
def torch_is_there() -> None:
    reason = missing(Framework.TORCH)
    if reason is not None:
        skip_or_fail(reason)


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own commands
        command,
        env=environment() | {"PACELINE_NODE": "node-7", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("way", ["client", *every_night("server")])
def test_a_machine_is_measured_and_its_ledger_says_what_that_means(
    client: httpx.Client, way: str
) -> None:
    server = str(client.base_url)
    commands = {
        "client": (torch_python(), "-m", "paceline_client", "probe", server, *_QUICK),
        "server": (sys.executable, "-m", "app.cli.main", "probe", "--server", server, *_QUICK),
    }
    done = run(*commands[way])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("node-7: 2 devices, PyTorch ")
    *_, sentence, url = done.stdout.splitlines()
    assert sentence.startswith("node-7: nothing to compare with: probe 4 or more other devices")
    assert client.get(url).status_code == 200
    found = client.get("/api/v1/hosts/node-7/probe").json()
    for device in found["devices"]:
        # Without a GPU there are no copies between host and device.
        assert set(device["measures"]) == {"matmul_tflops", "memory_copy_gbs", "all_reduce_gbs"}
        assert all(figure["value"] > 0 for figure in device["measures"].values())


def test_measurements_are_printed_even_if_the_server_is_away() -> None:
    done = run(
        *(sys.executable, "-m", "app.cli.main", "probe", "--server", "http://127.0.0.1:9", *_QUICK)
    )
    assert done.returncode == 1
    assert "[server.unreachable]" in done.stderr
    assert "matmul" in done.stdout


@by_night
def test_a_device_that_hangs_is_named_and_the_others_are_measured() -> None:
    stopped: list[int] = []

    def stop_one() -> None:
        while not stopped:
            for process in Path("/proc").iterdir():
                if not process.name.isdecimal():
                    continue
                try:
                    words = (process / "cmdline").read_bytes().split(b"\0")
                    parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                except OSError:
                    continue
                ours = parent == str(os.getpid()) and b"paceline_client.probe" in words
                if ours and words[words.index(b"--device") + 1] == b"1":
                    stopped.append(int(process.name))
                    os.kill(stopped[0], signal.SIGSTOP)
            time.sleep(0.01)

    thread = threading.Thread(target=stop_one)
    thread.start()
    found = probe(seconds=0.1, give_up_after_s=60.0)
    thread.join()
    other, stopped_one = found.devices
    assert stopped_one.fault == "it stands still"
    # The other process only waited for the failed one.
    assert other.fault is None
    assert {"matmul_tflops", "memory_copy_gbs"} <= set(other.measures)


def test_devices_that_say_much_keep_no_others_waiting(tmp_path: Path) -> None:
    # Output before the first measurement that exceeds a pipe's buffer, like NCCL's own log.
    noise = "import sys\nfor to in (sys.stdout, sys.stderr):\n    to.write('noise\\n' * 100_000)\n"
    (tmp_path / "sitecustomize.py").write_text(noise)
    path = os.pathsep.join((str(tmp_path), environment().get("PYTHONPATH", "")))
    done = run(
        *(torch_python(), "-m", "paceline_client", "probe", *_QUICK),
        PYTHONPATH=path,
    )
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout
    assert done.stdout.count("all reduce") == 2


def test_without_pytorch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ProbeError, match="needs PyTorch"):
        probe()
