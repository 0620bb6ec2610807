from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "words.py"
# Concatenated, because the check also reads this file.
UNWANTED = "no" + "body"


def words(root: Path, text: str) -> subprocess.CompletedProcess[str]:
    (root / ".ci").mkdir()
    (root / ".ci" / "page.md").write_text(text)
    return subprocess.run(  # noqa: S603 - our own script
        [sys.executable, SCRIPT, "--root", root], capture_output=True, text=True, check=False
    )


def test_an_unwanted_word_is_printed_with_its_place(tmp_path: Path) -> None:
    done = words(tmp_path, f"# A page\n\n{UNWANTED.title()} reads so\nmany.\n")
    assert done.returncode == 1
    assert done.stdout.splitlines()[:2] == [
        f".ci/page.md:3: {UNWANTED.title()}",
        ".ci/page.md:3: so" + " many",
    ]


def test_a_word_that_contains_one_is_none(tmp_path: Path) -> None:
    assert words(tmp_path, f"There was anybody.\nanti{UNWANTED}\n").returncode == 0
