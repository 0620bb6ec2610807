"""The examples, run as by users: Paceline names the rank that was slowed.

They run every night; most of them also run in CI, with the client's spool only
(tests/real_jobs/test_tutorials.py).
"""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.conftest import skip_or_fail
from tests.integration.client.conftest import environment
from tests.real_jobs.launching import torch_python
from tests.support.nightly import by_night

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation

EXAMPLES: Final = Path(__file__).parents[3] / "examples"
SCRIPTS: Final = sorted(path for path in EXAMPLES.glob("*.py") if path.stem != "common")
# On a busy machine a sleeping process wakes up late: longer sleeps keep the ratio.
PACE: Final = ("--pace", "2")
# Required packages in addition to PyTorch.
NEEDS: Final = {
    "megatron_core": "megatron",
    "lightning_ddp": "pytorch_lightning",
    "accelerate_ddp": "accelerate",
    "hugging_face": "transformers",
    "deepspeed_zero": "deepspeed",
}
# The place of the slow rank 1 as (DP rank, stage), if it is not (1, 0).
SLOW: Final = {"pipeline_1f1b": [0, 1]}
LIMIT_S: Final = 240


@by_night
@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_rank_that_was_slowed_is_named(
    installation: Installation, tmp_path: Path, script: Path
) -> None:
    for package in ("torch", NEEDS.get(script.stem, "torch")):
        if importlib.util.find_spec(package) is None:
            skip_or_fail(f"{package} is not installed")
    ran = subprocess.run(  # noqa: S603 - our own script
        [
            *(torch_python(), str(script), "--slow", "1:1.8", "--steps", "10"),
            *PACE,
        ],
        env=environment()
        | {
            "PACELINE_SERVER": installation.url,
            "PACELINE_SPOOL": str(tmp_path / "spool"),
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        },
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
    assert (first["cause"], first["where"].get("workers")) == (
        "slow_worker",
        [SLOW.get(script.stem, [1, 0])],
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_is_connected_in_a_few_lines(script: Path) -> None:
    text = script.read_text()
    compile(text, str(script), "exec")
    assert text.count("paceline.attach(") == text.count("monitor.step()") == 1
