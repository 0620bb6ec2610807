"""A rank may leave whenever it likes: no other one is aborted for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import skip_or_fail
from tests.integration.client.conftest import environment
from tests.real_jobs.jobs import Framework
from tests.real_jobs.launching import missing, torch_python

_LEAVING = Path(__file__).with_name("leaving.py")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["attached", "broken"])
def test_a_rank_ends_well_though_the_store_is_gone_meanwhile(tmp_path: Path, how: str) -> None:
    reason = missing(Framework.TORCH)
    if reason is not None:
        skip_or_fail(reason)
    ended = subprocess.run(  # noqa: S603 - our own script
        [torch_python(), str(_LEAVING), str(tmp_path), how],
        env=environment() | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "terminate called" not in ended.stderr
