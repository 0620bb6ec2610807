"""`--labels`: a job that labels its own layers is analyzed by the map in the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from app.analysis.trace.formats.registry import WRITERS
from app.cli.analyze import analyze_file
from app.cli.convert import convert, read_recordings
from app.cli.main import main
from app.errors import InvalidLabelsError
from tests.unit.analysis.trace.recordings.kineto_files import KinetoFile

DOCS = Path(__file__).parents[3] / "docs" / "converting.md"
MS = 1_000_000
SLOW = 2


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    section = DOCS.read_text().split("### Labels of your own ranges", 1)[1]
    found = re.search(r"```yaml\n(.*?)```", section, re.DOTALL)
    assert found is not None
    path = tmp_path / "labels.yaml"
    path.write_text(found[1])
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a job of four data-parallel ranks with experts, one slower by a factor of 1.5."""
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in range(4):
        file = KinetoFile(
            rank=rank, world=4, groups={"default_pg": [0, 1, 2, 3], "mesh_dp": [0, 1, 2, 3]}
        )
        for step in range(6):
            begin = at = 4_459_370_929_637_969 + step * 52 * MS
            for direction in ("F", "B"):
                for mb in range(2):
                    for part in ("attn", "dispatch", "mlp", "combine"):
                        own = 3 * MS if part in {"attn", "mlp"} else MS
                        own = own * 3 // 2 if rank == SLOW and own > MS else own
                        said = f"{part}({direction}) mb={mb}"
                        file.add(said, at, own)
                        at += own
            until = begin + 46 * MS
            file.add("gloo:all_reduce", at, until - at, Process_Group_Description="mesh_dp", tid=9)
            file.add(f"iteration {step + 100}", begin, until + 5 * MS - begin)
            file.add("Optimizer.step#AdamW.step", until, 4 * MS)
        (folder / f"rank{rank}.json").write_bytes(file.body())
    return folder


def test_the_map_of_the_documentation_names_the_slow_rank(
    folder: Path, labels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analyze_file(folder, None, as_json=True, timeline=None, labels=labels)
    report = json.loads(capsys.readouterr().out)

    assert report["steps"]["analyzed"] == [100, 101, 102, 103, 104, 105]
    sentence = report["verdict"]["sentence"]
    assert "worker (2, 0) on node-2 computes 1.4× slower than its peers" in sentence


def test_what_is_converted_with_labels_is_what_is_analyzed_with_them(
    folder: Path, labels: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    convert("kineto", [folder], out, None, WRITERS["parquet"], labels=labels)
    written = read_recordings([out], None, None).trace
    read = read_recordings([folder], None, None, labels=labels).trace
    assert written.start_ns.tolist() == read.start_ns.tolist()
    assert written.mb.tolist() == read.mb.tolist()
    # In each step four computations, eight exchanges, a reduction and an optimizer.
    assert len(read) == 4 * 6 * (4 + 8 + 2)


def test_a_refusal_says_the_file_the_line_and_the_pattern(
    folder: Path, labels: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels.write_text(labels.read_text() + "'head(F': forward-compute\n")
    with pytest.raises(InvalidLabelsError, match=r"labels\.yaml: .*'head\(F' \(line 5\)"):
        read_recordings([folder], None, None, labels=labels)
    arguments = ["paceline", "analyze", str(folder), "--labels", str(labels)]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert "labels.bad_pattern" in said
    assert "line 5" in said


def test_patterns_that_match_nothing_are_said_of_all_files_together(
    folder: Path, labels: Path
) -> None:
    labels.write_text(labels.read_text() + "'head\\(F\\)': forward-compute\n")
    (one,) = read_recordings([folder], None, None, labels=labels).unmapped
    assert one.count == 4
    assert "'head\\\\(F\\\\)' (line 5)" in one.what
