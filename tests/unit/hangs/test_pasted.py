"""Texts of py-spy and ncclras are read as far as they say enough, else the flag is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.hangs.findings import Hang, HangKind
from app.analysis.hangs.verdict import judge_hang
from app.errors import InvalidTraceError
from app.hangs.files import FileKind, job_of, kind_of, read_hang_file
from tests.support.nightly import drawn
from tests.support.pasted import py_spy_text, ras_text

WAIT = [("all_reduce", "torch/distributed/distributed_c10d.py", 2810), ("train", "loop.py", 31)]
LOAD = [("__iter__", "data.py", 12), ("train", "loop.py", 20), ("<module>", "loop.py", 99)]


def judged(bodies: dict[str, str]) -> Hang:
    files = (file for name, text in bodies.items() for file in read_hang_file(name, text.encode()))
    return judge_hang(job_of(files))


@pytest.mark.parametrize("colored", [False, True])
@pytest.mark.parametrize("children", [0, 2])
def test_the_stack_of_the_main_thread_is_read(colored: bool, children: int) -> None:  # noqa: FBT001
    text = py_spy_text(LOAD, colored=colored, children=children)
    assert kind_of(text.encode()) is FileKind.PY_SPY
    (file,) = read_hang_file("stack_5.txt", text.encode())

    assert file.rank == 5
    assert [(one.function, one.file, one.line) for one in file.stack] == LOAD


def test_a_rank_that_is_elsewhere_is_named() -> None:
    texts = {f"rank{rank}.log": py_spy_text(LOAD if rank == 3 else WAIT) for rank in range(8)}
    hang = judged(texts)

    assert [(one.rank, one.kind) for one in hang.culprits] == [(3, HangKind.NEVER_ENTERED)]
    assert hang.culprits[0].stack[0].line == 12


def test_a_prompt_before_the_text_does_not_matter() -> None:
    text = "$ py-spy dump --pid 71\n" + py_spy_text(LOAD)
    (file,) = read_hang_file("stack_0.txt", text.encode())
    assert file.stack[0].function == "__iter__"


def test_the_stacks_of_several_ranks_in_one_file_are_refused_with_what_to_do() -> None:
    text = py_spy_text(WAIT, 71) + py_spy_text(LOAD, 72)
    with pytest.raises(InvalidTraceError, match=r"stacks of 2 processes.*--json") as refused:
        read_hang_file("stack_0.txt", text.encode())
    assert refused.value.stable_code == "hang.invalid_stack"


@given(
    world=st.integers(12, 80),
    number=st.integers(1, 1 << 40),
    data=st.data(),
    has_table=st.booleans(),
)
@drawn(60)
def test_ranks_that_ras_lists_as_behind_are_named(
    world: int,
    number: int,
    data: st.DataObject,
    has_table: bool,  # noqa: FBT001
) -> None:
    late = data.draw(st.sets(st.integers(0, world - 1), min_size=1, max_size=5))
    counts = [{"AllGather": number - (rank in late)} for rank in range(world)]
    text = ras_text(counts, has_table=has_table)
    hang = judged({"ras.txt": text})

    assert {one.rank for one in hang.culprits} == late
    assert {one.kind for one in hang.culprits} == {HangKind.NEVER_ENTERED}
    assert len(hang.waiting) == world - len(late)
    assert hang.culprits[0].operation == f"AllGather {number} of communicator (0x5c1d90ab12ef7744)"
    first = min(late)
    assert hang.culprits[0].place == f"10.0.0.7 GPU {first % 4}"


def test_ranks_that_do_not_answer_are_silent() -> None:
    hang = judged({"ras.txt": ras_text([None if rank == 6 else {} for rank in range(8)])})
    assert hang.kind is HangKind.NOTHING_PENDING  # RAS does not say that the others wait

    counts = [None if rank == 6 else {"AllReduce": 64 - (rank == 2)} for rank in range(16)]
    hang = judged({"ras.txt": ras_text(counts)})
    assert {one.rank: one.kind for one in hang.culprits} == {
        2: HangKind.NEVER_ENTERED,
        6: HangKind.SILENT,
    }


def test_a_job_without_a_problem_has_no_rank_that_waits() -> None:
    hang = judged({"ras.txt": ras_text([{"AllReduce": 9}] * 8)})
    assert (hang.kind, hang.culprits) == (HangKind.NOTHING_PENDING, ())


def test_ranks_of_a_part_of_the_job_are_refused_with_the_flag_that_helps() -> None:
    part = ras_text([{"AllReduce": 9 - (rank == 1)} for rank in range(4)], group=1)
    whole = ras_text([{"AllReduce": 9}] * 8)
    head, table = whole.split("\n\nErrors\n")[0] + "\n", part.splitlines()
    row = next(line for line in table if "MISMATCH" in line)
    text = head + row + "\n" + part.split("in group\n")[-1].partition("\n")[2]
    with pytest.raises(InvalidTraceError, match="ncclras -f json") as refused:
        read_hang_file("ras.txt", text.encode())
    assert refused.value.stable_code == "hang.invalid_ras"


def test_ranks_that_are_only_counted_are_refused_with_the_flag_that_helps() -> None:
    counts = [{"AllReduce": 9 - rank % 2} for rank in range(64)]
    with pytest.raises(InvalidTraceError, match=r"which AllReduce: ncclras -f json"):
        read_hang_file("ras.txt", ras_text(counts).encode())


def test_a_report_that_names_a_rank_of_millions_is_refused() -> None:
    text = ras_text([{"AllReduce": 9 - (rank == 1)} for rank in range(4)])
    with pytest.raises(InvalidTraceError, match="the most is 65536"):
        read_hang_file("ras.txt", text.replace("Rank 1 ", "Rank 99999999 ").encode())
