from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "words.py"
UNWANTED = "no" + "body"


def words(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own script
        [sys.executable, SCRIPT, "--root", root], capture_output=True, text=True, check=False
    )


def test_an_unwanted_word_is_printed_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(f"# A page\n\n{UNWANTED.title()} reads it.\n")
    (tmp_path / "README.md").write_text("so" + "\nmany\n")
    done = words(tmp_path)
    assert done.returncode == 1
    assert "README.md:1: so" + " many" in done.stdout.splitlines()
    assert f"docs/page.md:3: {UNWANTED.title()}" in done.stdout.splitlines()


def test_a_word_that_contains_one_is_none(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("There was anybody.\nanti" + UNWANTED + "\n")
    assert words(tmp_path).returncode == 0
