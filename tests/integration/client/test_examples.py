"""A quick one of the examples, as people run it: Paceline names the rank that was slowed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import skip_or_fail
from tests.integration.client.conftest import environment
from tests.real_jobs.jobs import Framework
from tests.real_jobs.launching import missing, torch_python

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation

EXAMPLES = Path(__file__).parents[3] / "examples"
LIMIT_S = 240


# It fails now and then: a rank that leaves while its client waits for the store is aborted.
@pytest.mark.slow
@pytest.mark.skipif("PACELINE_NIGHTLY" not in os.environ, reason="every night: most of a minute")
def test_the_rank_that_was_slowed_is_named(installation: Installation, tmp_path: Path) -> None:
    reason = missing(Framework.TORCH)
    if reason is not None:
        skip_or_fail(reason)
    ran = subprocess.run(  # noqa: S603 - our own script
        [
            *(torch_python(), str(EXAMPLES / "torch_pipelining.py"), "--slow", "1:1.8"),
            *("--server", installation.url, "--steps", "12"),
        ],
        env=environment()
        | {"PACELINE_SPOOL": str(tmp_path / "spool"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    installation.analyze_all()
    (session,) = installation.client.get("/api/v1/sessions").json()["sessions"]
    assert session["state"] in {"analyzed", "no_verdict"}
    report = installation.client.get(f"/api/v1/sessions/{session['id']}/report").json()
    first = report["causes"][0]
    assert (first["cause"], first["where"]["workers"]) == ("slow_worker", [[1, 0]])


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_connected_in_a_few_lines(script: Path) -> None:
    text = script.read_text()
    compile(text, str(script), "exec")
    if script.stem != "common":
        assert text.count("paceline.attach(") == text.count("monitor.step()") == 1
