from __future__ import annotations

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.merge import TraceChunk
from app.analysis.trace.recordings.files import check_one_recording
from app.errors import UnanalyzableError
from tests.unit.analysis.trace.recordings.kineto_files import BASE_NS, two_stages


def chunk(rank: int, later_s: float, name: str | None = None) -> TraceChunk:
    """Return the recording of a rank, of a start that was some time later."""
    file = two_stages(rank)
    file.fields["baseTimeNanoseconds"] = BASE_NS + int(later_s * 1e9)
    trace = decode(file.body(), None, limits=Limits(), part=True).trace
    return TraceChunk(name or f"rank{rank}.json", rank, trace)


@pytest.mark.parametrize("apart_s", [0, 0.2, -0.2, 20, -20])
def test_ranks_whose_clocks_are_apart_are_one_recording(apart_s: float) -> None:
    check_one_recording([chunk(0, 0), chunk(1, apart_s)])


@pytest.mark.parametrize("apart_s", [600, -600, 86400.0 * 7])
def test_ranks_of_two_starts_are_refused_by_name(apart_s: float) -> None:
    with pytest.raises(UnanalyzableError, match=r"step 10 of rank[01]\.json begins at") as refused:
        check_one_recording([chunk(0, 0), chunk(1, apart_s)])
    assert refused.value.stable_code == "trace.two_recordings"
    assert "rank0.json" in refused.value.message
    assert "rank1.json" in refused.value.message


def test_a_rank_of_two_starts_is_refused() -> None:
    chunks = [chunk(0, 0, "a/rank0.json"), chunk(0, 3600, "b/rank0.json")]
    with pytest.raises(UnanalyzableError, match=r"of b/rank0\.json 3,600 s later"):
        check_one_recording(chunks)


def test_of_many_files_some_are_named() -> None:
    chunks = [chunk(0, 0), *(chunk(1, 600, f"later{number}.json") for number in range(5))]
    with pytest.raises(UnanalyzableError, match=r"later1\.json, later2\.json, 2 more 600"):
        check_one_recording(chunks)
