"""Each adaptation has a sentence, a row of the documentation, and a job that needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.analysis.replay.adaptations.kind import SENTENCES, Name
from tests.real_jobs.scenarios import NEEDS, REPRESENTATIVE
from tests.unit.analysis.replay.adaptations.test_second_physics import NEEDED

ENGINE = Path(__file__).parents[5] / "docs" / "engine.md"


@pytest.mark.parametrize("name", Name)
def test_each_adaptation_has_a_sentence_and_a_line_of_the_documentation(name: Name) -> None:
    assert SENTENCES[name][0].isupper()
    assert SENTENCES[name][-1] != "."
    lines = [
        line for line in ENGINE.read_text().splitlines() if line.startswith(f"| `{name.value}` |")
    ]
    assert len(lines) == 1


def test_a_job_needs_each_adaptation() -> None:
    # Without these, the real job mcV has no dependency graph (tests/real_jobs/test_real_jobs.py).
    by_real_jobs = {Name.UNMATCHED_TRANSFERS, Name.IDLE_TRANSFERS}
    by_real_jobs |= {name for names in NEEDS.values() for name in names}

    assert set(NEEDS) <= set(REPRESENTATIVE)
    needed = set(NEEDED) | {Name.PROGRAM_ORDER, Name.UNEVEN_BEGINS}  # test_program_order.py
    needed.add(Name.PADDED_MICROBATCHES)  # causes/ranks/test_uneven_microbatches.py
    assert by_real_jobs | needed == set(Name)
    assert not by_real_jobs & needed
