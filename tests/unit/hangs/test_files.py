"""Files of a hanging job are recognized, read, or refused with a code."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.hangs.findings import HangKind
from app.analysis.hangs.verdict import judge_hang
from app.errors import InvalidTraceError
from app.hangs.files import FileKind, HangFile, job_of, kind_of, rank_in_name, read_hang_file
from tests.support.hanging import Hanging, as_json, pickled, ras, stack_dump
from tests.support.nightly import drawn
from tests.support.pasted import py_spy_text, ras_text, watchdog_log

WORLD = [(0, 1, 2, 3)]
HANGING = Hanging(4, [WORLD, [(0, 1), (2, 3)], WORLD], host_stops={2: 2})
STACK = json.dumps(
    [
        {
            "pid": 7,
            "thread_id": 1,
            "thread_name": "MainThread",
            "owns_gil": True,
            "frames": [{"name": "collate", "filename": "/job/packing.py", "line": 212}],
        }
    ]
).encode()
EVERY = {
    FileKind.FLIGHT_RECORDER: pickled(HANGING.dumps()[0]),
    FileKind.PY_SPY: STACK,
    FileKind.NCCL_RAS: as_json(ras(HANGING)),
}
TEXTS = {
    "py-spy": py_spy_text([("collate", "/job/packing.py", 212)], children=1).encode(),
    "ras": ras_text([{"AllReduce": 9 - (rank == 1), "AllGather": 3} for rank in range(6)]).encode(),
    "watchdog": watchdog_log({0: (9, 7), 1: (9, 7), 2: (7, 7)}).encode(),
}
CODES = {
    "hang.invalid_dump",
    "hang.invalid_pickle",
    "hang.invalid_stack",
    "hang.invalid_ras",
    "hang.no_world",
    "hang.no_dumps",
    "hang.too_large",
}


def read(name: str, body: bytes) -> HangFile:
    (found,) = read_hang_file(name, body)
    return found


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("_dump_0", 0),
        ("nccl_trace_rank_12", 12),
        ("host-7_dump_3.json", 3),
        ("fr_15.pickle", 15),
        ("README.md", None),
    ],
)
def test_names_end_with_ranks(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_kinds_are_recognized_by_content() -> None:
    assert {kind: kind_of(body) for kind, body in EVERY.items()} == {kind: kind for kind in EVERY}
    assert kind_of(as_json(HANGING.dumps()[0])) is FileKind.FLIGHT_RECORDER
    assert kind_of(b"# Dumps") is None


@given(
    places=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=6),
    text=st.sampled_from(sorted(TEXTS)),
    written=st.text(alphabet="0123456789-()[]:# \t\r", max_size=24),
)
@drawn(200)
def test_texts_with_lines_in_other_places_are_read_or_refused(
    places: list[tuple[int, int]], text: str, written: str
) -> None:
    lines = TEXTS[text].decode().split("\n")
    for start, end in places:
        lines.insert(end % len(lines), lines[start % len(lines)])
        lines[start % len(lines)] += written
    assert code_of_refusal("\n".join(lines).encode()) in {None, *CODES}


def test_dumps_stacks_and_ras_say_rank_line_and_gpu_together() -> None:
    files = [read(f"_dump_{rank}", pickled(dump)) for rank, dump in HANGING.dumps().items()]
    files += [read("stack_2.json", STACK), read("ras.json", EVERY[FileKind.NCCL_RAS])]
    (culprit,) = judge_hang(job_of(files)).culprits

    assert (culprit.rank, culprit.kind) == (2, HangKind.NEVER_ENTERED)
    assert (culprit.host, culprit.gpu) == ("10.0.0.0", "2")
    assert culprit.stack[0].line == 212


def test_nothing_is_no_hang_and_a_stack_alone_blames_no_rank() -> None:
    with pytest.raises(InvalidTraceError, match="neither a dump"):
        job_of([])
    assert judge_hang(job_of([read("stack_2.json", STACK)])).culprits == ()


def test_stacks_of_several_ranks_are_read_without_dumps() -> None:
    wait = stack_dump(("all_reduce", "torch/distributed/distributed_c10d.py", 3012))
    files = [read(f"stack_{rank}.json", STACK if rank == 2 else wait) for rank in range(4)]

    (culprit,) = judge_hang(job_of(files)).culprits

    assert (culprit.rank, culprit.stack[0].line) == (2, 212)


def test_a_process_says_that_its_rank_says_nothing_any_more() -> None:
    """gloo's dumps list no groups, so the default group has all known ranks."""
    dumps = {rank: dump | {"pg_config": {}} for rank, dump in HANGING.dumps().items()}
    for dump in dumps.values():
        for entry in dump["entries"]:
            entry["process_group"] = ("0", "default_pg")
    files = [read(f"_dump_{rank}", pickled(dump)) for rank, dump in dumps.items() if rank != 3]
    files += [read("process_3.json", b'{"process":{"pid":7,"state":""}}')]
    files += [read("stack_3.json", STACK)]

    named = judge_hang(job_of(files)).culprits
    assert [(one.rank, one.kind) for one in named if one.rank == 3] == [(3, HangKind.SILENT)]
    assert "process 7 has ended" in named[-1].evidence
    gone = judge_hang(job_of(files[:3], gone={3})).culprits
    assert [one.evidence.partition(",")[0] for one in gone if one.rank == 3] == [
        "says nothing any more"
    ]


def test_refusals_begin_with_the_name_of_the_file() -> None:
    with pytest.raises(InvalidTraceError, match=r"^_dump_0: .*GLOBAL at byte 2"):
        read("_dump_0", b"\x80\x02cos\nsystem\n.")
    with pytest.raises(InvalidTraceError, match="does not end with a rank") as refused:
        read("stack.json", STACK)
    assert refused.value.stable_code == "hang.no_rank"


@given(
    undamaged=st.sampled_from([*EVERY.values(), *TEXTS.values()]),
    changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(max_size=6)), max_size=4),
    cut=st.integers(0, 1 << 16),
)
@drawn(600)
def test_every_reader_reads_or_refuses_what_is_damaged(
    undamaged: bytes, changes: list[tuple[int, bytes]], cut: int
) -> None:
    body = bytearray(undamaged)
    for at, written in changes:
        first = at % len(body)
        body[first : first + len(written)] = written
    assert code_of_refusal(bytes(body[: cut or None])) in {None, *CODES}


def code_of_refusal(body: bytes) -> str | None:
    try:
        found = read_hang_file("dump_0", body)
        if found:
            judge_hang(job_of(found))
    except InvalidTraceError as error:
        return error.stable_code
    return None


def test_the_main_thread_is_recognized_by_its_number_if_it_has_no_name() -> None:
    frame = {"name": "collate", "filename": "a.py", "module": None, "line": 2, "locals": None}
    other: dict[str, object] = {
        "pid": 7,
        "os_thread_id": 8,
        "thread_name": None,
        "owns_gil": True,
        "frames": [],
    }
    main = {"pid": 7, "os_thread_id": 7, "thread_name": None, "owns_gil": False, "frames": [frame]}
    found = read("stack_3.json", json.dumps([other, main]).encode())
    assert [one.function for one in found.stack] == ["collate"]
