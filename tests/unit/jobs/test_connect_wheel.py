"""The wheel of the client that the server builds."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from io import BytesIO
from typing import TYPE_CHECKING

import pytest

from app.jobs.connect import NAME, client_wheel
from paceline_client import VERSION

if TYPE_CHECKING:
    from pathlib import Path


def test_it_has_every_module_once_and_no_rubbish() -> None:
    with zipfile.ZipFile(BytesIO(client_wheel().content)) as archive:
        names = archive.namelist()
    assert len(names) == len(set(names))
    assert {"paceline_client/recorder.py", "paceline_client/torch/attaching.py"} <= set(names)
    assert "paceline_client/py.typed" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


@pytest.mark.slow
def test_pip_installs_it_and_it_works_alone(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(client_wheel().content)
    target = tmp_path / "installed"
    pip = ("-m", "pip", "install", "--no-index", "--no-deps", "--target", str(target))
    for words in (
        (*pip, str(tmp_path / NAME)),
        ("-S", "-c", f"import sys; sys.path.insert(0, {str(target)!r}); import paceline_client"),
    ):
        done = subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, *words], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
    assert (target / f"paceline_client-{VERSION}.dist-info" / "METADATA").exists()
