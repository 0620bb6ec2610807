from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "structure.py"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for package in ("app", "app/room", "workers"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "workers" / "one.py").write_text("import app.room.a\n")
    (tmp_path / "app" / "room" / "a.py").write_text("VALUE = 1\n")
    return tmp_path


def structure(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own script
        [sys.executable, SCRIPT, "--root", root, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
    )


def test_each_folder_is_counted(root: Path) -> None:
    (root / "app" / "room" / "b.py").write_text(
        "def _once():\n    pass\n\n\ndef _twice():\n    pass\n\n\ndef call():\n"
        "    _once()\n    _twice()\n    _twice()\n"
    )

    done = structure(root)

    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["files", "lines", "defs", "private", "once", "short", "depth"],
        ["app/room", "2", "13", "3", "2", "1", "1", "1"],
        ["workers", "1", "1", "0", "0", "0", "0", "0"],
        ["all", "3", "14", "3", "2", "1", "1", "1"],
        ["circles", "of", "imports:", "0"],
    ]


def test_a_file_four_folders_below_the_program_is_too_deep_but_in_the_analysis(root: Path) -> None:
    for folders in ("room/b/c/d", "analysis/b/c/d"):
        (root / "app" / folders).mkdir(parents=True)
        (root / "app" / folders / "deep.py").write_text("VALUE = 1\n")

    done = structure(root, "--quiet")

    assert (done.returncode, done.stdout) == (1, "deeper than allowed: app/room/b/c/d/deep.py\n")


def test_a_circle_is_found_through_other_files_and_imports_for_types(root: Path) -> None:
    room = root / "app" / "room"
    (room / "a.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from app.room.b import B\n"
    )
    (room / "b.py").write_text("import app.room.c\nclass B: pass\n")
    (room / "c.py").write_text("def late():\n    import app.room.a\n")

    done = structure(root, "--quiet")

    assert done.returncode == 1, done.stderr
    assert done.stdout == "circle of imports: app.room.a app.room.b app.room.c\n"
