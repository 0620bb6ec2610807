from __future__ import annotations

import pytest

from app.analysis.trace.recordings.files import FileNames, names_of, rank_in


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json.gz", 3),
        ("job/rank_0012/trace.json", 12),
        ("Rank-7.pt.trace.json", 7),
        ("rank1/attempt2/rank4.json", 4),
        ("host_rank5", 5),
        ("frank3.json", None),
        ("rank.json", None),
        ("node3.json", None),
        ("rank12345678.json", None),
        ("worker0_step_12.json", 0),
        ("worker3.1623143089861.pt.trace.json.gz", 3),
        ("dp4_worker2/rank1.json", 1),
        ("coworker3.json", None),
        ("1748000000.123-TP-5.trace.json.gz", 5),
        ("job-DP-2.json", 2),
        ("x-TP-3-DP-0-PP-0-EP-3.json", 3),
        ("x-TP-3-PP-1.json", None),
        ("[TP02] 1002", 2),
        ("[TP01-PP00] 1002", 1),
        ("[TP01-PP01] 1002", None),
        ("llama-TP8.json", None),
        ("TP-4/trace.json", None),
        ("http2.json", None),
    ],
)
def test_a_name_says_the_rank(name: str, rank: int | None) -> None:
    assert rank_in(name) == rank


def test_names_of_all_ranks_say_how_many_there_are() -> None:
    names = [f"trace/rank{rank}.json" for rank in range(12)]
    assert names_of(names[::-1])[names[3]] == FileNames(3, 12, place=3, files=12)
    # Names with a missing rank, a repeated rank, no rank, and a single file.
    for among in (names[1:], [*names, "again/rank0.json"], [*names, "log.json"], names[:1]):
        of_file = names_of(among).get(names[0], FileNames())
        assert of_file.world is None


def test_workers_of_several_steps_are_ranks_and_those_of_several_processes_are_none() -> None:
    steps = [f"worker{rank}_step_{step}.json" for rank in range(2) for step in (3, 4)]
    assert [names_of(steps)[name].rank for name in steps] == [0, 0, 1, 1]
    assert {names_of(steps)[name].world for name in steps} == {2}
    pods = [f"job-worker-{pod}_{pid}.json" for pod in range(2) for pid in (41, 42)]
    assert {names_of(pods)[name].rank for name in pods} == {None}
    alone = [f"job-worker-{pod}_7.json" for pod in range(3)]
    assert [names_of(alone)[name] for name in alone] == [
        FileNames(rank, 3, place=rank, files=3) for rank in range(3)
    ]
