"""The exceptions to the rule of everyday tests name existing files and tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.everyday import ALL_OF_FILE, AS_WELL, NONE

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", [*ALL_OF_FILE, *NONE, *AS_WELL])
def test_it_is_there(name: str) -> None:
    file, _, test = name.partition("::")
    assert any(ROOT.glob(f"{file}*"))
    if test:
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text()
