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
