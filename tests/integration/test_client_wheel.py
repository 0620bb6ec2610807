"""The client's wheel and source distribution are built, and the wheel is installed alone."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from paceline_client import VERSION

CLIENT = Path(__file__).parents[2] / "client"
BUILD = "import hatchling.build as b, sys; print(getattr(b, sys.argv[1])(sys.argv[2]))"
USE = """
import paceline_client, sys
recorder = paceline_client.Recorder("http://127.0.0.1:9", "job", {"dp": 1, "pp": 1})
assert not {"numpy", "torch"} & set(sys.modules)
print(paceline_client.__version__)
"""


@pytest.mark.slow
def test_wheel_and_source_have_everything_and_work_alone(tmp_path: Path) -> None:
    def python(*words: str, cwd: Path) -> str:
        return subprocess.run(  # noqa: S603 - our own argument list
            [sys.executable, *words], check=True, capture_output=True, text=True, cwd=cwd
        ).stdout

    for kind in ("build_wheel", "build_sdist"):
        python("-c", BUILD, kind, str(tmp_path), cwd=CLIENT)
    (wheel,) = tmp_path.glob(f"paceline_client-{VERSION}-py3-none-any.whl")
    (source,) = tmp_path.glob(f"paceline_client-{VERSION}.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")  # noqa: S202 - our own
        metadata = archive.read(f"paceline_client-{VERSION}.dist-info/METADATA").decode()
    assert {
        "paceline_client/py.typed",
        "paceline_client/torch/attaching.py",
        "paceline_client/torch/instrumentation/base.py",
    } <= names
    assert "Requires-Python: >=3.10" in metadata
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert all("extra ==" in line for line in required), required
    with tarfile.open(source) as archive_of_source:
        files = {name.partition("/")[2] for name in archive_of_source.getnames()}
    assert {"CHANGELOG.md", "LICENSE", "README.md", "src/paceline_client/recorder.py"} <= files
    # Without `site`, only the standard library and the client can be imported.
    told = python("-S", "-P", "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r})\n{USE}", cwd=tmp_path)  # fmt: skip  # noqa: E501
    assert told.strip() == VERSION
