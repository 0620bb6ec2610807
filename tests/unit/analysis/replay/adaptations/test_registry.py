"""Each adaptation has a sentence, a line of the documentation and a name of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.analysis.replay.adaptations.evidence import SENTENCES, Name

ENGINE = Path(__file__).parents[5] / "docs" / "engine.md"


@pytest.mark.parametrize("name", Name)
def test_each_adaptation_has_a_sentence_and_a_line_of_the_documentation(name: Name) -> None:
    assert SENTENCES[name][0].isupper()
    assert SENTENCES[name][-1] != "."
    lines = [
        line for line in ENGINE.read_text().splitlines() if line.startswith(f"| `{name.value}` |")
    ]
    assert len(lines) == 1
