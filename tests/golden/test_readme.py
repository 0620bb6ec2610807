"""The README shows the actual output of the commands."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.commands.program import app
from tests.golden.conftest import Published

README = Path(__file__).parents[2] / "README.md"
EXAMPLE = re.compile(
    r"^\$ paceline (?P<command>.+)\n(?P<printed>(?:(?!\$|```).+\n)+)", re.MULTILINE
)
ANY_MORE = "…"


def test_examples_on_published_traces(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [match.groupdict() for match in EXAMPLE.finditer(README.read_text())]
    of_this = [example for example in found if f"trace-{published.name}." in example["command"]]
    assert of_this or published.name == "ST"
    monkeypatch.chdir(os.environ["PACELINE_REFERENCE_DATA"])
    for example in of_this:
        done = CliRunner().invoke(app, shlex.split(example["command"]))
        assert done.exit_code == 0
        printed, shown = done.output.splitlines(), example["printed"].splitlines()
        if shown[-1] == ANY_MORE:
            shown.pop()
            printed = printed[: len(shown)]
        assert printed == shown
