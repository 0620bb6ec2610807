from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import load_metadata
from app.analysis.trace.model import Sizes
from app.cli.synthetic.files import write_scenario
from tests.support.command import paceline
from tests.unit.analysis.trace.recordings.kineto_files import KinetoFile, two_stages

if TYPE_CHECKING:
    from pathlib import Path


def job(folder: Path, ranks: int = 2) -> list[Path]:
    """Write the Kineto files of a pipeline of two stages, one a rank."""
    files = []
    for rank in range(ranks):
        path = folder / f"worker{rank}.pt.trace.json.gz"
        path.write_bytes(gzip.compress(two_stages(rank).body()))
        files.append(path)
    return files


def test_the_files_of_all_ranks_become_one_trace(tmp_path: Path) -> None:
    files = job(tmp_path)
    out = tmp_path / "session"
    done = paceline("convert", "kineto", *files, "--out", out)

    assert (done.returncode, done.stderr) == (0, "")
    trace_path, meta_path = done.stdout.splitlines()
    meta = load_metadata((out / "meta.yaml").read_text())
    assert (trace_path, meta_path) == (str(out / "trace.parquet"), str(out / "meta.yaml"))
    assert meta.sizes == Sizes(dp=1, pp=2)
    assert meta.hosts == {0: "node-0", 1: "node-1"}
    trace = decode(out / "trace.parquet", meta, limits=Limits()).trace
    assert set(trace.rank.tolist()) == {0, 1}
    assert set(trace.step.tolist()) == set(range(10, 18))


def test_a_folder_is_analyzed_as_it_is_and_as_it_was_converted(tmp_path: Path) -> None:
    traces, out = tmp_path / "traces", tmp_path / "session"
    traces.mkdir()
    job(traces)
    assert paceline("convert", "kineto", traces, "--out", out).returncode == 0
    reports = [json.loads(paceline("analyze", folder, "--json").stdout) for folder in (traces, out)]

    assert reports[0] == reports[1]
    assert reports[0]["schema"] == "paceline.report/1"
    assert reports[0]["sizes"]["pp"] == 2


def test_a_folder_that_synth_wrote_is_analyzed_too(tmp_path: Path) -> None:
    files = write_scenario("healthy", tmp_path, seed=1)
    alone = paceline("analyze", files.trace, "--meta", files.meta)
    folder = paceline("analyze", tmp_path)

    assert (folder.returncode, folder.stderr) == (0, "")
    assert folder.stdout == alone.stdout


def test_what_is_left_out_is_said_with_its_remedy(tmp_path: Path) -> None:
    file = two_stages(0)
    file.add("gloo:all_reduce", 5, 10)
    (tmp_path / "rank0.json").write_bytes(file.body())
    done = paceline("convert", "kineto", tmp_path / "rank0.json", "--out", tmp_path / "out")

    assert done.returncode == 0
    assert "Left out: 1 collectives whose process group is not recorded: record with" in done.stderr


def test_what_is_left_out_goes_with_the_session_into_its_report(tmp_path: Path) -> None:
    traces, out = tmp_path / "traces", tmp_path / "session"
    traces.mkdir()
    for rank in range(2):
        file = two_stages(rank)
        file.add("gloo:broadcast", 5, 10, Process_Group_Description="checkpoint")
        (traces / f"rank{rank}.json").write_bytes(file.body())
    assert paceline("convert", "kineto", traces, "--out", out).returncode == 0
    reports = [json.loads(paceline("analyze", folder, "--json").stdout) for folder in (traces, out)]

    assert [report["coverage"]["unmapped"] for report in reports] == 2 * [
        [{"what": "broadcast of the process group checkpoint", "count": 2, "remedy": None}]
    ]


def test_a_refused_file_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    files = job(tmp_path)
    silent = KinetoFile(rank=1, world=2, groups={"default_pg": [0, 1]})
    silent.add("Forward 0", 0, 10)
    files[1].write_bytes(silent.body())
    done = paceline("convert", "kineto", *files, "--out", tmp_path / "out")

    assert done.returncode == 1
    assert "worker1.pt.trace.json.gz: no range is labelled" in done.stderr
    assert "[trace.no_labels]" in done.stderr
    assert not (tmp_path / "out").exists()


def test_ranks_of_two_jobs_contradict_each_other(tmp_path: Path) -> None:
    files = job(tmp_path)
    other = two_stages(1, world=4)
    other.groups = {"mesh_pp": [1, 3], "mesh_dp": [0, 1]}
    files[1].write_bytes(other.body())
    done = paceline("convert", "kineto", *files, "--out", tmp_path / "out")

    assert done.returncode == 1
    assert "[metadata.conflict]" in done.stderr


def test_the_same_recording_twice_counts_once(tmp_path: Path) -> None:
    files = job(tmp_path)
    (tmp_path / "again.json").write_bytes(two_stages(0).body())
    done = paceline("convert", "kineto", files[0], tmp_path / "again.json", "--out", tmp_path / "o")

    assert done.returncode == 0
    meta = load_metadata((tmp_path / "o" / "meta.yaml").read_text())
    trace = decode(tmp_path / "o" / "trace.parquet", meta, limits=Limits()).trace
    assert len(trace) == len(decode(files[0], None, limits=Limits()).trace)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("convert", "perfetto", "{folder}"), "the kind is one of"),
        (("convert", "kineto", "{folder}", "--format", "csv"), "--format is one of"),
    ],
)
def test_wrong_use_is_said(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = paceline(*(part.format(folder=tmp_path) for part in arguments))
    assert done.returncode == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_a_folder_without_traces_or_with_several_kinds_is_refused(tmp_path: Path) -> None:
    assert "[file.no_trace]" in paceline("analyze", tmp_path).stderr

    job(tmp_path)
    write_scenario("healthy", tmp_path, seed=1)
    done = paceline("analyze", tmp_path)
    assert done.returncode == 1
    assert "holds files of" in done.stderr
    assert "[file.mixed_formats]" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("worker1.pt.trace.json", b"\xef\xbb\xbf{}", "begins with a byte order mark"),
        ("worker1.pt.trace.json.gz", b"", "is empty"),
        ("worker1.log", b"Traceback (most recent", "begins with 'Traceback (most recent'"),
        ("worker1.pt.trace.json.gz", b"\x1f\x8bcut", "compression is damaged"),
    ],
)
def test_a_file_of_a_folder_that_is_not_read_is_named(
    tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    job(tmp_path)
    (tmp_path / "worker1.pt.trace.json.gz").unlink()
    (tmp_path / name).write_bytes(content)
    (tmp_path / "README.md").write_text("notes")
    done = paceline("analyze", tmp_path)
    assert done.returncode == 1
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("Not read: ")]
    assert str(tmp_path / name) in said
    assert why in said
    assert "README" not in done.stderr
    assert "[trace.rank_missing]" in done.stderr


def test_upload_takes_one_trace_of_a_folder(tmp_path: Path) -> None:
    job(tmp_path)
    done = paceline("upload", tmp_path, "--job", "llama", "--server", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "make one of them with paceline convert" in done.stderr
