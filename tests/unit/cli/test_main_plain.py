"""`paceline analyze` without the full argument parser has the same output."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli.commands.program import app
from app.cli.plain import plain_analysis
from app.cli.synthetic import SyntheticFiles, write_scenario
from tests.support.command import paceline


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> SyntheticFiles:
    return write_scenario("slow-worker", tmp_path_factory.mktemp("trace"), seed=3)


@pytest.mark.slow
def test_what_is_plain_is_read_as_it_is_in_full(
    files: SyntheticFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    for rest in ([], ["--json"]):
        command = ["analyze", str(files.trace), *rest, "--meta", str(files.meta)]
        assert plain_analysis(command) is not None
        plainly = paceline(*command)
        app(command, standalone_mode=False)
        assert plainly.stdout == capsys.readouterr().out
        assert plainly.returncode == 0


def test_all_else_is_left_to_what_reads_any_command_line(files: SyntheticFiles) -> None:
    trace, meta = str(files.trace), str(files.meta)
    for command in (
        [],
        ["upload", trace],
        ["analyze"],
        ["analyze", trace, trace],
        ["analyze", trace, "--meta"],
        ["analyze", trace, "--meta", meta, "--meta", meta],
        ["analyze", trace, "--meta", str(files.meta.parent)],
        ["analyze", trace, "--meta", str(files.meta.parent / "missing.yaml")],
        ["analyze", str(Path("missing.parquet"))],
        ["analyze", trace, "--meta", meta, "--fix", "stage=0"],
        ["analyze", trace, f"--meta={meta}"],
        ["analyze", trace, "--help"],
        ["analyze", "--", trace],
    ):
        assert plain_analysis(command) is None, command


def test_completion_is_left_to_it(files: SyntheticFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PACELINE_COMPLETE", "complete_bash")
    assert plain_analysis(["analyze", str(files.trace)]) is None
