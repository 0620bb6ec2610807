from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from app.platform.resources import Scratch, sweep

MAKER = """
import time
from app.platform.resources import Scratch
print(Scratch().path, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_it_is_removed_with_all_that_is_in_it() -> None:
    scratch = Scratch()
    (scratch.path / "deep" / "er").mkdir(parents=True)
    (scratch.path / "deep" / "file").write_text("something")

    scratch.remove()
    scratch.remove()
    assert not scratch.path.exists()


def test_files_of_a_killed_process_are_deleted_and_those_in_use_are_kept(temporary: Path) -> None:
    mine = Scratch()
    with subprocess.Popen(  # noqa: S603 - the test's own
        [sys.executable, "-c", MAKER], stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        left = Path(maker.stdout.readline().strip())
        (left / "pymp-1").mkdir()

        sweep()
        assert (left / "pymp-1").is_dir()
        maker.kill()
    sweep()

    assert list(temporary.iterdir()) == [mine.path]
    mine.remove()


def test_links_and_files_of_such_a_name_are_left_alone(
    temporary: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "kept").touch()
    (temporary / "paceline-child-link").symlink_to(elsewhere)
    (temporary / "paceline-child-file").touch()

    sweep()

    assert (elsewhere / "kept").exists()
    assert len(list(temporary.iterdir())) == 2
