"""Output of NCCL's RAS, read into the states of the ranks."""

from __future__ import annotations

import json

import pytest

from app.analysis.hangs.findings import Hang, HangKind
from app.analysis.hangs.verdict import judge_hang
from app.errors import InvalidTraceError
from app.hangs.ras import is_ras, ras_job, read_ras
from tests.support.equal_hashes import equal_hashes
from tests.support.hanging import Hanging, as_json, ras

WORLD: list[tuple[int, ...]] = [tuple(range(8))]
PAIRS: list[tuple[int, ...]] = [(0, 1), (2, 3), (4, 5), (6, 7)]
ROUNDS = [WORLD, PAIRS, WORLD, PAIRS, WORLD]


def judged(document: dict[str, object]) -> Hang:
    return judge_hang(ras_job(read_ras(as_json(document))))


def test_a_rank_that_never_launched_what_the_others_did_is_named_with_its_gpu() -> None:
    hang = judged(ras(Hanging(8, ROUNDS, host_stops={5: 2}, ahead=1)))

    (culprit,) = hang.culprits
    assert (culprit.rank, culprit.kind) == (5, HangKind.NEVER_ENTERED)
    assert (culprit.host, culprit.gpu) == ("10.0.0.0", "5")
    assert hang.waiting == (0, 1, 2, 3, 4, 6, 7)
    assert culprit.operation == "ReduceScatter 2 of communicator (0x0)"


@pytest.mark.parametrize("how", ["silent", "dead"])
def test_a_process_that_does_not_answer_is_silent(how: str) -> None:
    job = Hanging(8, ROUNDS, host_stops={3: 4})
    hang = judged(ras(job, silent=(3,)) if how == "silent" else ras(job, dead=(3,)))
    assert [(one.rank, one.kind) for one in hang.culprits] == [(3, HangKind.SILENT)]


def test_a_job_that_goes_on_has_no_rank_that_waits() -> None:
    assert judged(ras(Hanging(8, ROUNDS))).kind is HangKind.NOTHING_PENDING


def test_sends_and_receives_may_differ() -> None:
    document = ras(Hanging(8, ROUNDS))
    counts = document["communicators"][0]["ranks"]
    assert len({one["collective_counts"]["SendRecv"] for one in counts}) > 1
    assert judged(document).kind is HangKind.NOTHING_PENDING


def test_ranks_are_numbered_by_the_communicator_of_all() -> None:
    document = ras(Hanging(8, ROUNDS))
    del document["communicators"][0]
    with pytest.raises(InvalidTraceError, match="No communicator has all 8") as refused:
        judged(document)
    assert refused.value.stable_code == "hang.no_world"


def test_a_recorders_dump_with_the_same_first_key_is_another_kind() -> None:
    assert is_ras(json.dumps(ras(Hanging(8, ROUNDS)), indent=2).encode())
    assert not is_ras(b'{"nccl_version": "2.28.3", "pg_config": {"0": {"communicators": 1}}}')


def test_a_damaged_file_is_refused_with_its_place() -> None:
    document = ras(Hanging(8, ROUNDS))
    document["communicators"][1]["ranks"][0]["rank"] = -1
    with pytest.raises(InvalidTraceError, match=r"communicators\.1\.ranks\.0\.rank") as refused:
        judged(document)
    assert refused.value.stable_code == "hang.invalid_ras"


@pytest.mark.parametrize("key", ["pid", "cuda_dev", "nvml_dev"])
def test_processes_with_equal_hashes_are_refused(key: str) -> None:
    document = ras(Hanging(8, ROUNDS))
    listed = document["communicators"][0]["ranks"]
    for rank, number in zip(listed, equal_hashes(len(listed)), strict=True):
        rank[key] = number
    with pytest.raises(InvalidTraceError, match=rf"communicators\.0\.ranks\.4\.{key}"):
        read_ras(as_json(document))
