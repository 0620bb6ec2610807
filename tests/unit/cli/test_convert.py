from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.trace.decode import decode
from app.analysis.trace.encode import to_ndjson_gz
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import load_metadata
from app.analysis.trace.model import Sizes
from app.cli.synthetic import write_scenario
from tests.factories import session
from tests.support.command import Done, paceline
from tests.unit.analysis.trace.recordings.kineto_files import BASE_NS, KinetoFile, two_stages
from tests.unit.sessions.recordings.archives import forms, written

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


def test_the_file_of_a_cycle_that_was_cut_off_is_named_and_left_out(tmp_path: Path) -> None:
    """PyTorch's profiler writes such a file if a job ends before the next steps of its schedule."""
    job(tmp_path)
    whole = paceline("analyze", tmp_path)
    empty = KinetoFile(rank=1, world=2)
    empty.add("ProfilerStep#20", 4_459_371_929_637_969, 1_000_000)
    (tmp_path / "worker1.cut.pt.trace.json").write_bytes(empty.body())
    done = paceline("analyze", tmp_path)

    assert done.returncode == 0
    assert "worker1.cut.pt.trace.json: the profiler recorded no operation" in done.stderr
    assert done.stdout == whole.stdout

    for file in tmp_path.glob("worker?.pt.*"):
        file.unlink()
    refused = paceline("analyze", tmp_path)
    assert refused.returncode != 0
    assert "the profiler recorded no operation" in refused.stderr
    assert "[trace.no_rows]" in refused.stderr


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


def test_unmapped_operations_are_named_with_the_remedy(tmp_path: Path) -> None:
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
    assert "worker1.pt.trace.json.gz: its ranges are those of a stage" in done.stderr
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
def test_wrong_arguments_are_reported(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
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
        ("worker1.pt.trace.json", '{"a": []}'.encode("utf-16"), "an object with 'a'"),
        ("worker1.pt.trace.json", b'{"data": [{"traceID": "1", "spans": []}]}', "Jaeger's JSON"),
        ("worker1.json", b'[{"a": 1, "b": 2}]', "an array whose objects have 'a' and 'b'"),
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
    assert done.returncode == 0
    said = [line for line in done.stderr.splitlines() if line.startswith("Not read: ")]
    assert len(said) == 1, "what lies next to recordings is not mentioned"
    assert str(tmp_path / name) in said[0]
    assert why in said[0]
    assert "No DP rank of stage 1 is there" in done.stdout


def test_a_folder_with_subfolders_is_what_its_files_are(tmp_path: Path) -> None:
    flat, deep = tmp_path / "flat", tmp_path / "deep"
    flat.mkdir()
    for rank, file in enumerate(job(flat)):
        place = deep / f"node-{rank}" / "traces"
        place.mkdir(parents=True)
        (place / file.name).write_bytes(file.read_bytes())
    (deep / "latest").symlink_to(deep / "node-0")
    (deep / ".cache").mkdir()
    (deep / ".cache" / "worker0.pt.trace.json").write_bytes(two_stages(0).body())
    expected = paceline("analyze", flat, "--json")
    done = paceline("analyze", deep, "--json")

    assert done.returncode == 0
    assert done.stderr == f"Not read: {deep}/latest: it is a link to a folder\n"
    assert report_of(done) == report_of(expected)


def report_of(done: Done) -> dict[str, Any]:
    """Return a report without the list of files that were not read."""
    report: dict[str, Any] = json.loads(done.stdout)
    report["coverage"]["unmapped"] = []
    return report


@pytest.mark.parametrize("name", ["traces.tar", "traces.tar.gz", "traces.tar.zst", "traces.zip"])
def test_an_archive_of_a_folder_is_what_the_folder_is(tmp_path: Path, name: str) -> None:
    flat = tmp_path / "traces"
    flat.mkdir()
    files = [(f"traces/{file.name}", file.read_bytes()) for file in job(flat)]
    log = ("traces/train.log", b"step 1 loss 2.3")
    path = written(tmp_path, name, forms([*files, log])[name])
    expected = paceline("analyze", flat, "--json")
    done = paceline("analyze", path, "--json")

    assert done.returncode == 0
    assert done.stderr.startswith(
        f"Not read: {path}/traces/train.log: it is of no known format: it begins with 'step 1 loss"
    )
    assert report_of(done) == report_of(expected)
    [left_out] = json.loads(done.stdout)["coverage"]["unmapped"]
    assert left_out["what"].startswith("file that is not read, traces/train.log: it is of no known")
    out = tmp_path / "out"
    assert paceline("convert", "kineto", path, "--out", out).returncode == 0
    assert paceline("analyze", out, "--json").stdout == done.stdout


def test_the_metadata_of_an_archive_are_used(tmp_path: Path) -> None:
    files = write_scenario("healthy", tmp_path, seed=1)
    entries = [(f"run/{one.name}", one.read_bytes()) for one in (files.trace, files.meta)]
    path = written(tmp_path, "run.zip", forms(entries)["traces.zip"])
    done = paceline("analyze", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == paceline("analyze", files.trace, "--meta", files.meta).stdout


def test_a_harmful_archive_is_refused_with_its_entry(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tar", forms([("../rank0.json", b"{}")])["traces.tar"])
    done = paceline("analyze", path)
    assert done.returncode == 1
    assert "../rank0.json: the name leads out" in done.stderr
    assert "[archive.unsafe_name]" in done.stderr


def test_files_of_two_starts_of_a_job_are_refused_by_name(tmp_path: Path) -> None:
    job(tmp_path)
    later = two_stages(1)
    later.fields["baseTimeNanoseconds"] = BASE_NS + 600 * 10**9
    (tmp_path / "worker1.pt.trace.json.gz").write_bytes(gzip.compress(later.body()))
    done = paceline("analyze", tmp_path)
    assert done.returncode == 1
    assert "two recordings: step 10 of worker0.pt.trace.json.gz begins at" in done.stderr
    assert "of worker1.pt.trace.json.gz 600 s later" in done.stderr
    assert "[trace.two_recordings]" in done.stderr


def test_two_jobs_in_a_folder_are_refused_by_name(tmp_path: Path) -> None:
    job(tmp_path)
    (tmp_path / "other").mkdir()
    other = two_stages(1, world=4)
    other.groups = {"mesh_pp": [1, 3], "mesh_dp": [0, 1]}
    (tmp_path / "other" / "rank1.json").write_bytes(other.body())
    done = paceline("analyze", tmp_path)
    assert done.returncode == 1
    assert "other/rank1.json and worker0.pt.trace.json.gz are not of one job" in done.stderr
    assert "[metadata.conflict]" in done.stderr


def test_a_log_of_json_lines_is_no_trace(tmp_path: Path) -> None:
    job(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.3}\n')
    done = paceline("analyze", tmp_path)
    assert done.returncode == 0
    assert "Not read: " in done.stderr
    assert "metrics.jsonl: it is JSON of no known format" in done.stderr


def test_two_recordings_of_a_rank_are_named(tmp_path: Path) -> None:
    job(tmp_path)
    again = two_stages(1)
    again.events = [event.replace('"dur":9000.000', '"dur":9001.000') for event in again.events]
    (tmp_path / "rank1-again.json").write_bytes(again.body())
    done = paceline("analyze", tmp_path)
    assert done.returncode == 1
    assert (
        "rank1-again.json and worker1.pt.trace.json.gz are two recordings of rank 1" in done.stderr
    )
    assert "[trace.rank_twice]" in done.stderr


def test_ranks_that_claim_one_place_are_named(tmp_path: Path) -> None:
    for rank in range(4):
        file = two_stages(rank % 2, world=4)
        file.rank = rank
        # Rank 2 has the place of rank 0, as in a file of another job.
        file.groups = {"mesh_pp": [rank, rank + 1], "mesh_dp": [rank, rank + 2]}
        if rank % 2:
            file.groups = {"mesh_pp": [rank - 1, rank], "mesh_dp": [rank, rank + 2]}
        (tmp_path / f"rank{rank}.json").write_bytes(file.body())
    done = paceline("analyze", tmp_path)
    assert done.returncode == 1
    assert "rank0.json (rank 0) and rank2.json (rank 2) both stand at DP rank 0" in done.stderr
    assert "[trace.place_taken]" in done.stderr


def one_step_files(folder: Path, name: str, *, numbered: bool) -> None:
    """Write steps 11, 21 and 31 of two ranks, each in a separate file."""
    for step in (11, 21, 31):
        for rank in range(2):
            path = folder / name.format(step=step, rank=rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(two_stages(rank, 1, first=step, numbered=numbered).body())


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        # Names of TorchTitan, with and without the folder of a replica.
        "profile_trace/iteration_{step}/rank{rank}_trace.json",
        "iteration_{step}/replica_0/rank{rank}_trace.json",
        "rank{rank}_step_{step}.pt.trace.json",
        "step-{step}/{rank}/trace.json",
    ],
)
def test_files_of_one_step_each_are_one_session(
    tmp_path: Path, name: str, *, numbered: bool
) -> None:
    one_step_files(tmp_path, name, numbered=numbered)
    done = paceline("analyze", tmp_path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = report_of(done)
    assert report["steps"]["analyzed"] == [11, 21, 31]
    assert report["sizes"]["pp"] == 2


def test_one_step_is_analyzed_without_an_interval(tmp_path: Path) -> None:
    trace = session(SlowWorker((1, 0), 1.5), steps=1).trace
    (tmp_path / "trace.ndjson.gz").write_bytes(to_ndjson_gz(trace))
    done = paceline("analyze", tmp_path / "trace.ndjson.gz")
    assert done.returncode == 0
    assert "computes 1.5× slower than its peers; one step, so no interval" in done.stdout
    assert "1 step\n" in done.stdout
    assert "(no interval: it needs 20 steps, to tell how often a job has spells; this is one)" in (
        done.stdout
    )


def test_a_rank_that_is_there_twice_is_refused_with_both_files(tmp_path: Path) -> None:
    for name in ("now", "before"):
        (tmp_path / name).mkdir()
        for rank in range(2):
            body = two_stages(rank, 1, numbered=name == "now").body()
            (tmp_path / name / f"rank{rank}.json").write_bytes(body.replace(b"#10", b"#0"))
    (tmp_path / "now" / "rank1.json").unlink()
    (tmp_path / "before" / "rank0.json").write_bytes(
        two_stages(0, 1, first=13).body().replace(b"#13", b"#0")
    )
    done = paceline("analyze", tmp_path)
    assert done.returncode == 1
    assert "[trace.rank_twice]" in done.stderr
    assert "before/rank0.json and now/rank0.json are two recordings of rank 0" in done.stderr


def test_ranks_that_recorded_other_steps_have_those_that_are_common(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(two_stages(0, 3).body())
    (tmp_path / "rank1.json").write_bytes(two_stages(1, 4).body())
    done = paceline("analyze", tmp_path)
    assert done.returncode == 0
    assert "3 steps, 1 dropped" in done.stdout
    assert "Step 13 is left out: rank 0 (DP rank 0, stage 0) sent nothing" in done.stdout
