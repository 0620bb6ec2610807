"""`paceline hang`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli.hang import judge_files
from app.errors import InvalidTraceError
from tests.support.hanging import Hanging, as_json, pickled

HANGING = Hanging(4, [[(0, 1, 2, 3)], [(0, 1), (2, 3)], [(0, 1, 2, 3)]], host_stops={3: 1})


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    for rank, dump in HANGING.dumps().items():
        (tmp_path / f"_dump_{rank}").write_bytes(pickled(dump))
    (tmp_path / "README.md").write_text("# What these are")
    return tmp_path


def test_names_who_is_waited_for_and_the_chain(
    dumps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge_files([dumps], as_json=False)
    out, err = capsys.readouterr()

    assert out.startswith("3 ranks wait for rank 3. Rank 3 has nothing pending and never entered")
    assert "py-spy dump" in out
    assert "\n  2 for 3: nccl:_all_gather_base 1 of GROUP (6)\n" in out
    assert "README.md: not read" in err


def test_json_is_the_verdict_alone(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judge_files([dumps / f"_dump_{rank}" for rank in range(4)], as_json=True)
    hang = json.loads(capsys.readouterr().out)

    (culprit,) = hang["culprits"]
    assert (culprit["rank"], culprit["kind"]) == (3, "never_entered")
    assert {"host", "gpu", "operation", "evidence"} <= culprit.keys()
    assert hang["waiting"] == [0, 1, 2]
    assert hang["confidence"] == 0.95
    assert hang["unknown"] == []


def test_the_line_of_code_of_a_culprit_is_named_if_its_stack_is_known(
    dumps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = {"name": "read", "filename": "/a/loader.py", "short_filename": "loader.py", "line": 7}
    threads = [
        {"thread_name": "pin_memory", "owns_gil": True, "frames": []},
        {"thread_name": "MainThread", "frames": [frame | {"locals": [{"name": "secret"}]}]},
    ]
    (dumps / "stack_3.json").write_text(json.dumps(threads))
    judge_files([dumps], as_json=True)
    out = capsys.readouterr().out
    (culprit,) = json.loads(out)["culprits"]

    assert culprit["evidence"].endswith("; it is in read (loader.py:7)")
    assert culprit["stack"] == [{"function": "read", "file": "loader.py", "line": 7}]
    assert "secret" not in out


def test_an_invalid_stack_file_is_refused_with_its_place(dumps: Path) -> None:
    (dumps / "stack_3.json").write_text('[{"frames": [{"name": "f"}]}]')
    with pytest.raises(InvalidTraceError, match=r"no dump of py-spy: 0\.frames\.0\.") as refused:
        judge_files([dumps], as_json=False)
    assert refused.value.stable_code == "hang.invalid_stack"


def test_a_name_without_a_rank_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(as_json(HANGING.dumps()[0]))
    with pytest.raises(InvalidTraceError, match="does not end with a rank") as refused:
        judge_files([tmp_path], as_json=False)
    assert refused.value.stable_code == "hang.no_rank"


def test_a_refusal_says_of_which_file_it_is(dumps: Path) -> None:
    (dumps / "_dump_2").write_bytes(b"\x80\x02cos\nsystem\n.")
    with pytest.raises(InvalidTraceError, match=r"_dump_2: The opcode GLOBAL at byte 2") as refused:
        judge_files([dumps], as_json=False)
    assert refused.value.stable_code == "hang.invalid_pickle"
