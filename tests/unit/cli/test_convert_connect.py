from __future__ import annotations

import pytest

from app.analysis.report.build import analyze
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.cli.connect import STEPS, tiny_session
from app.jobs.connect import LAUNCHERS, WAYS, Target
from tests.support.command import paceline

ASKED = ("--job", "llama-70b", "--server", "http://127.0.0.1:9")


@pytest.mark.parametrize("framework", WAYS)
def test_the_lines_are_all_of_standard_output(framework: str) -> None:
    done = paceline("connect", "--framework", framework, "--launcher", "slurm", "--no-send", *ASKED)

    way = WAYS[framework]
    blocks = [*way.blocks(Target("http://127.0.0.1:9", "llama-70b"))]
    blocks += (
        [LAUNCHERS["slurm"].block(Target("http://127.0.0.1:9", "llama-70b"))] if way.in_job else []
    )
    assert (done.returncode, done.stdout) == (0, "\n\n".join(blocks) + "\n")
    assert way.prose.split(".")[0] in done.stderr


@pytest.mark.parametrize(
    ("options", "missing"),
    [((), "framework"), (("--framework", "ddp"), "launcher"), (("--framework", "curl"), "job")],
)
def test_without_a_terminal_what_is_missing_is_named(
    options: tuple[str, ...], missing: str
) -> None:
    done = paceline("connect", *options, "--no-send")

    assert done.returncode == 1
    assert f"give --{missing}" in done.stderr
    assert "[connect.incomplete]" in done.stderr


def test_a_framework_that_there_is_not_is_wrong_use() -> None:
    done = paceline("connect", "--framework", "jax", *ASKED)

    assert done.returncode == 2
    assert "--framework is one of ddp" in " ".join(done.stderr.split())


def test_a_server_that_does_not_answer_is_reported_after_the_lines() -> None:
    done = paceline("connect", "--framework", "curl", *ASKED)

    assert done.returncode == 1
    assert "llama-70b/sessions" in done.stdout
    assert "cannot be reached" in done.stderr


def test_the_tiny_session_gets_a_verdict_of_nothing_slow() -> None:
    trace = decode(tiny_session(), None, limits=Limits()).trace
    report = analyze(trace).report

    assert len(report.steps.analyzed) == STEPS
    assert report.fidelity.verdict
    assert report.slowdown == pytest.approx(1.0, abs=0.01)
    assert report.causes == ()
