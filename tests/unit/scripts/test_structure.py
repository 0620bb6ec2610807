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


def test_a_room_may_have_fifteen_files_and_not_one_more(root: Path) -> None:
    for number in range(14):
        (root / "app" / "room" / f"file_{number}.py").touch()
    done = structure(root)
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["1", "lines", "app"],
        ["1", "lines", "app/room"],
        ["1", "lines", "workers"],
        ["15", "app/room"],
        ["1", "workers"],
        ["circles", "of", "imports:", "0"],
    ]

    (root / "app" / "room" / "one_more.py").touch()
    done = structure(root, "--quiet")
    assert (done.returncode, done.stdout) == (1, "  16 app/room: over 15 files\n")


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
