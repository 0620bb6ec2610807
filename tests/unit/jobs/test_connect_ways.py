from __future__ import annotations

import ast

import pytest

from app.jobs.connect import LAUNCHERS, WAYS, Target, Way

TARGET = Target("http://paceline:8765", "llama-70b")


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_lines_name_the_server_and_the_job(way: Way) -> None:
    text = "\n".join(way.blocks(TARGET))

    assert "http://paceline:8765" in text
    assert "llama-70b" in text
    assert "{" not in text


@pytest.mark.parametrize("name", [way.name for way in WAYS.values() if way.in_job])
def test_what_goes_into_a_job_is_python(name: str) -> None:
    install, code = WAYS[name].blocks(TARGET)

    assert install.startswith("pip install ")
    lines = ast.parse(code).body
    # A few new lines, and ellipses for the existing code.
    assert len(lines) <= 9


def test_every_launcher_hands_on_the_token() -> None:
    for launcher in LAUNCHERS.values():
        block = launcher.block(TARGET)
        assert "PACELINE_TOKEN" in block
        assert "paceline token create llama-70b --scope ingest --job llama-70b" in block
        made = launcher.block(TARGET, "plc_secret")
        assert "plc_secret" in made
        assert "token create" not in made
    assert not set(LAUNCHERS) & set(WAYS)
