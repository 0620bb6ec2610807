"""Every kind of cause has its documentation, injection and tests; failures name missing ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from app.analysis.diagnosis.causes.kind import CauseKind, Plan
from app.analysis.diagnosis.causes.registry import ALTERNATIVES, KINDS, blames_machine, title_of
from app.analysis.synthesis.random_sessions import CAUSES as DRAWN
from app.analysis.synthesis.scenarios import SCENARIOS
from app.incidents.message import cause_name

ROOT: Final = Path(__file__).parents[5]
CAUSES: Final = ROOT / "app/analysis/diagnosis/causes"
TESTS: Final = Path(__file__).parent
NO_CAUSE: Final = {"__init__", "kind", "late_rank", "registry"}

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)


def modules() -> list[Path]:
    """Return the files of causes in their folder and its subfolders."""
    found = (path.relative_to(CAUSES) for path in CAUSES.rglob("*.py"))
    return sorted(path for path in found if path.stem not in NO_CAUSE)


def imported(path: Path) -> str:
    return f"causes.{'.'.join(path.with_suffix('').parts)} import"


def section(title: str) -> str:
    """Return the text below a title of the diagnosis page in one line; empty without the title."""
    page = (ROOT / "docs/diagnosis.md").read_text()
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##)", page, re.DOTALL | re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def test_every_file_of_a_cause_has_its_kind_in_the_registry() -> None:
    registered = (CAUSES / "registry.py").read_text()

    assert [path for path in modules() if imported(path) not in registered] == []
    assert len(modules()) == len(KINDS)


def test_every_cause_has_its_test() -> None:
    tests = {path: TESTS / path.parent / f"test_{path.name}" for path in modules()}

    assert [path for path, test in tests.items() if not test.exists()] == []


@every_kind
def test_the_page_of_the_diagnosis_has_a_section_of_the_cause(kind: CauseKind) -> None:
    text = section(kind.title)

    assert text, f"docs/diagnosis.md has no section ### {kind.title}"
    assert f"`{kind.name}`" in text


@pytest.mark.parametrize("name", KINDS)
def test_its_section_says_its_sign(name: str) -> None:
    kind = KINDS[name]

    assert kind.sign in section(kind.title)


def test_every_cause_is_drawn_in_populations() -> None:
    assert sorted(KINDS) == sorted(DRAWN)


def test_every_cause_has_a_scenario() -> None:
    made = {
        injection.cause
        for scenario in SCENARIOS.values()
        for injection in scenario.draw(scenario.job, np.random.default_rng(0))
    }

    assert [name for name in KINDS if name not in made] == []


# Scenarios and dials inject known faults by name. The client is a separate distribution.
KNOWN_TRUTH: Final = ROOT / "app/analysis/synthesis"
ANALYSIS: Final = ROOT / "app/analysis"
# The names of operations between steps are also names of causes.
OPERATION_TYPES: Final = ROOT / "app/analysis/trace/model.py"
# Phases of a pulse's beats, such as a checkpoint, have the same names.
PHASES: Final = ROOT / "app/analysis/pulse/columns.py"
PROGRAMS: Final = (
    "app/**/*.py",
    "workers/**/*.py",
    "frontend/templates/**/*.html",
    "frontend/static/js/**/*.js",
)
SINGLE_CAUSE: Final = re.compile(
    r"app\.analysis\.diagnosis\.causes\.(?!kind\b|registry\b|late_rank\b)\w+"
)


def test_no_cause_is_named_outside_of_its_file_and_the_registry() -> None:
    """Code that knows a cause by its name would have to be changed for each new cause.

    Names are searched as strings, because docstrings contain them as examples. "network" and
    "checkpoint" are searched in the analysis only: elsewhere they are a scenario and a mark in a
    job's history. "slow_together" is also a part of the budget.
    """
    quoted, special = (
        re.compile(rf"""["'`]({"|".join(names)})["'`]""")
        for names in (KINDS, [name for name in KINDS if "_" in name])
    )
    own = {CAUSES / path for path in modules()}
    own |= {CAUSES / "registry.py", ANALYSIS / "budget" / "split.py", OPERATION_TYPES, PHASES}
    files = [path for pattern in PROGRAMS for path in ROOT.glob(pattern) if path not in own]
    texts = {path: path.read_text() for path in files if KNOWN_TRUTH not in path.parents}
    assert len(texts) > 700

    named = {
        path: found[0]
        for path, text in texts.items()
        for pattern in (quoted if ANALYSIS in path.parents else special, SINGLE_CAUSE)
        for found in [pattern.search(text.replace("``", ""))]
        if found
    }
    assert named == {}
    for path in modules():
        text = (CAUSES / path).read_text()
        assert set(quoted.findall(text)) == {kind_in(path)}, path
        assert not SINGLE_CAUSE.search(text), path


def kind_in(path: Path) -> str:
    """Return the name of the cause in a file."""
    found = re.search(r'^    name="(\w+)",$', (CAUSES / path).read_text(), re.MULTILINE)
    assert found
    return found[1]


def test_each_plan_and_each_alternative_is_of_a_cause() -> None:
    planned = [kind.plan for kind in KINDS.values() if kind.plan is not None]

    assert sorted(plan.name for plan in planned) == sorted(plan.name for plan in Plan)
    assert {*ALTERNATIVES, *ALTERNATIVES.values()} <= set(KINDS)


def test_names_titles_and_words_are_each_one_cause() -> None:
    assert len({kind.title for kind in KINDS.values()}) == len(KINDS)
    assert len({kind.word for kind in KINDS.values()}) == len(KINDS)
    assert all(name == kind.name for name, kind in KINDS.items())


def test_machines_are_blamed_for_what_other_machines_would_not_do() -> None:
    assert {name for name in [*KINDS, "unknown", "cosmic_rays"] if blames_machine(name)} == {
        "slow_worker",
        "thermal_throttling",
        "network",
        "host_overhead",
        "tensor_parallel_straggler",
        "context_parallel_straggler",
    }


@every_kind
def test_messages_call_a_cause_as_pages_do(kind: CauseKind) -> None:
    assert title_of(kind.name) == cause_name(kind.name) == kind.title


def test_the_unknown_cause_and_causes_of_other_versions_have_titles() -> None:
    assert title_of("unknown") == cause_name("unknown") == "Unknown cause"
    assert title_of("cosmic_rays") == "Cosmic rays"
