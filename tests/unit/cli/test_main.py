"""The command line: its two streams and its exit codes, each once in a separate process."""

from __future__ import annotations

import gzip
import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from app.analysis.synthesis.host_jobs import HostJob
from app.analysis.synthesis.host_sessions import run
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.metadata import metadata_document
from app.cli.synthetic import SyntheticFiles, write_scenario
from tests.support.command import paceline, paceline_process

# This file can be opened, but not read: no memory is mapped at its beginning.
UNREADABLE = Path("/proc/self/mem")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> SyntheticFiles:
    return write_scenario("slow-worker", tmp_path_factory.mktemp("trace"), seed=3)


def test_it_says_its_version() -> None:
    assert paceline("--version").stdout == f"{version('paceline')}\n"


@pytest.mark.parametrize(
    "command",
    [
        ["serve"],
        ["worker"],
        ["migrate"],
        ["doctor"],
        ["user", "list"],
        ["backup", "file"],
        ["blobs", "check"],
        ["retention", "run"],
    ],
    ids=" ".join,
)
def test_wrong_settings_are_named_a_line_each(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_PORT", "abc")
    monkeypatch.setenv("PACELINE_LEASE", "5")

    done = paceline(*command)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "paceline: The settings cannot be used. [settings.invalid]",
        "  PACELINE_LEASE is not a setting: did you mean PACELINE_LEASE_S? [settings.invalid]",
        "  PACELINE_PORT must be a whole number; it is 'abc' [settings.invalid]",
    ]


@pytest.mark.slow
def test_the_report_is_all_of_standard_output(files: SyntheticFiles) -> None:
    done = paceline_process("analyze", files.trace, "--meta", files.meta, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    truth = json.loads(files.truth.read_text())
    assert report["schema"] == "paceline.report/1"
    assert report["causes"][0]["where"]["workers"] == truth["workers"]


def test_a_person_gets_verdict_heatmap_workers_and_fixes(files: SyntheticFiles) -> None:
    done = paceline("analyze", files.trace, "--meta", files.meta)
    assert (done.returncode, done.stderr) == (0, "")
    (dp, pp) = json.loads(files.truth.read_text())["workers"][0]
    lines = done.stdout.splitlines()
    assert f"without its cause: worker ({dp}, {pp})" in lines[0]
    stages = [line for line in lines if line.startswith("stage ")]
    assert len(stages) == 8
    # 8 stages × 8 DP ranks: each cell shows its slowdown, and the slow worker has the largest.
    cells = [[float(cell) for cell in line.split()[2:]] for line in stages]
    assert max(max(row) for row in cells) == cells[pp][dp] > 1.2
    assert any(line.startswith(f"({dp}, {pp})") for line in lines)
    assert any(line.startswith(f"Replace worker ({dp}, {pp}):") for line in lines)


def test_the_slowest_step_is_written_for_perfetto(files: SyntheticFiles, tmp_path: Path) -> None:
    out = tmp_path / "step.json.gz"
    done = paceline("analyze", files.trace, "--meta", files.meta, "--timeline", out)
    assert done.returncode == 0
    assert str(out) in done.stderr
    with gzip.open(out) as file:
        events = json.load(file)["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}


@pytest.fixture(scope="module")
def blocking(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    trace = run(HostJob(wire_ns=30e6, factors={(1, 0): 1.8})).trace
    folder = tmp_path_factory.mktemp("blocking")
    (folder / "trace.parquet").write_bytes(to_parquet(trace))
    (folder / "meta.json").write_text(json.dumps(metadata_document(trace.meta)))
    return folder / "trace.parquet", folder / "meta.json"


# Both adaptations, because either one finds blocking transfers.
PLAIN = ("--without", "blocking_transfers", "--without", "posted_in_turn")


def test_a_report_is_of_a_replay_without_an_adaptation(blocking: tuple[Path, Path]) -> None:
    trace, meta = blocking
    asked = ("analyze", trace, "--meta", meta, "--json")
    with_it = json.loads(paceline(*asked).stdout)["fidelity"]
    without = json.loads(paceline(*asked, *PLAIN).stdout)["fidelity"]

    assert [made["adaptation"] for made in with_it["adaptations"]] == ["blocking_transfers"]
    assert without["adaptations"] == []
    assert without["discrepancy"] == pytest.approx(with_it["adaptations"][0]["discrepancy_before"])
    assert without["verdict"] is False


def test_a_question_is_of_a_replay_without_an_adaptation(blocking: tuple[Path, Path]) -> None:
    trace, meta = blocking
    asked = ("analyze", trace, "--meta", meta, "--json", "--fix", "worker=1:0")
    with_it = json.loads(paceline(*asked).stdout)
    without = json.loads(paceline(*asked, *PLAIN).stdout)

    assert without["simulated_step_time_s"] < 0.95 * with_it["simulated_step_time_s"]


def test_there_is_no_other_adaptation(blocking: tuple[Path, Path]) -> None:
    trace, meta = blocking
    done = paceline("analyze", trace, "--meta", meta, "--without", "magic")
    assert done.returncode == 2
    assert "blocking_transfers" in done.stderr


@pytest.mark.slow
def test_a_question_is_answered_with_step_time_and_gain(files: SyntheticFiles) -> None:
    (dp, pp) = json.loads(files.truth.read_text())["workers"][0]
    asked = ("analyze", files.trace, "--meta", files.meta, "--fix", f"worker={dp}:{pp}")
    done = paceline(*asked)
    assert done.returncode == 0
    assert "s a step" in done.stdout
    answer = json.loads(paceline(*asked, "--json").stdout)
    assert answer["gain"] == pytest.approx(1 - 1 / 1.29, abs=0.02)
    replaced = paceline(*asked[:4], "--replace", f"worker={dp}:{pp}")
    assert "without its causes" in replaced.stdout
    scaled = paceline(
        "analyze", files.trace, "--meta", files.meta, "--scale", "op=forward-compute*2"
    )
    assert "more than" in scaled.stdout


def test_a_question_that_cannot_be_asked_fails_with_its_code(files: SyntheticFiles) -> None:
    for option, value in (("--fix", "worker=99:0"), ("--keep", "colour=red"), ("--scale", "op=gc")):
        done = paceline("analyze", files.trace, "--meta", files.meta, option, value)
        assert (done.returncode, done.stdout) == (1, "")
        assert "[what_if.invalid]" in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--fix", "stage=1,stage=2", "has stage= twice"),
        ("--fix", "worker=0", "'worker=0' does not name a worker as DP:STAGE"),
        ("--fix", "op=separate-grads-all-reduce", "no separate-grads-all-reduce in its replay"),
        ("--scale", "op=gc", "'op=gc' has no factor, such as op=gc*0.5"),
        ("--scale", "stage=0*" + "9" * 400, "is no factor: a number from 0 to 1000"),
    ],
)
def test_the_refusal_of_a_question_says_what_is_wrong(
    files: SyntheticFiles, option: str, value: str, message: str
) -> None:
    done = paceline("analyze", files.trace, "--meta", files.meta, option, value)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr.splitlines()[0]


@pytest.mark.slow
def test_rubbish_fails_with_code_and_position(files: SyntheticFiles, tmp_path: Path) -> None:
    rubbish = tmp_path / "trace.parquet"
    rubbish.write_bytes(b"not a trace")
    done = paceline("analyze", rubbish, "--meta", files.meta)
    assert (done.returncode, done.stdout) == (1, "")
    assert "[trace." in done.stderr
    truncated = tmp_path / "truncated.parquet"
    truncated.write_bytes(files.trace.read_bytes()[:-100])
    done = paceline_process("analyze", truncated, "--meta", files.meta)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_files_that_cannot_be_used_are_refused_in_a_line(
    files: SyntheticFiles, tmp_path: Path
) -> None:
    binary = tmp_path / "meta.yaml"
    binary.write_bytes(b"dp: 8\npp: 8\ntrial_name: caf\xe9\n")
    given = ("analyze", files.trace, "--meta")
    nowhere = tmp_path / "nowhere" / "step.json.gz"
    for arguments, code, detail in (
        ((*given, binary), "metadata.malformed", "line 3"),
        (("upload", files.trace, "--meta", binary), "metadata.malformed", "line 3"),
        ((*given, files.meta, "--timeline", nowhere), "file.not_writable", str(nowhere)),
        (("synth", "healthy", "--out", "/dev/null"), "file.not_writable", "/dev/null cannot be"),
        (("synth", "--fleet", "1", "--out", "/dev/null"), "file.not_writable", "/dev/null/"),
    ):
        done = paceline(*arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"[{code}]" in done.stderr.splitlines()[0]
        assert detail in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.skipif(not UNREADABLE.exists(), reason="only Linux has such a file")
def test_a_trace_that_the_system_does_not_let_read_is_refused() -> None:
    done = paceline("analyze", UNREADABLE)
    assert (done.returncode, done.stdout) == (1, "")
    assert "/proc/self/mem cannot be read: Input/output error [file.not_readable]" in done.stderr


@pytest.mark.slow
def test_wrong_use_has_an_exit_code_of_its_own(files: SyntheticFiles) -> None:
    timeline = paceline(
        "analyze", files.trace, "--meta", files.meta, "--fix", "stage=0", "--timeline", "x.json.gz"
    )
    assert (timeline.returncode, timeline.stdout) == (2, "")
    assert "--timeline" in timeline.stderr
    assert paceline("analyze", "nowhere.parquet").returncode == 2
    assert paceline("analyze", files.trace, "--no-such-option").returncode == 2
    assert paceline_process("no-such-command").returncode == 2


def test_a_package_that_only_the_server_needs_is_named(
    files: SyntheticFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in an installation of the core alone; modules are imported again.
    for loaded in [name for name in sys.modules if name.startswith("app.cli.")]:
        if loaded not in ("app.cli.main", "app.cli.main"):
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, "httpx", None)

    done = paceline("upload", files.trace, "--meta", files.meta)
    assert (done.returncode, done.stdout) == (1, "")
    assert "this command needs httpx" in done.stderr
    assert "paceline[server,embedded] [install.incomplete]" in done.stderr
    assert paceline("analyze", files.trace, "--meta", files.meta).returncode == 0
