"""Dumps of flight recorders, read into the states of the ranks."""

from __future__ import annotations

import json
import pickle

import pytest

from app.analysis.hangs.state import JobState
from app.errors import InvalidTraceError
from app.hangs.flight_recorder import FlightRecorder, RecordedDump, RecordedGroup, read_dump
from tests.support.equal_hashes import equal_hashes, flight_recorder
from tests.support.hanging import Hanging, as_json, pickled

WORLD = [(0, 1, 2, 3)]
PAIRS = [(0, 1), (2, 3)]
HANGING = Hanging(4, [WORLD, PAIRS, WORLD, PAIRS], host_stops={2: 2})


def joined(*dumps: bytes) -> JobState:
    recorder = FlightRecorder()
    for rank, dump in enumerate(dumps):
        recorder.add(rank, read_dump(dump))
    return recorder.job()


def test_pickles_and_json_say_the_same() -> None:
    dumps = list(HANGING.dumps().values())
    assert joined(*map(pickled, dumps)) == joined(*map(as_json, dumps))


def test_pending_collectives_keep_their_order_and_groups_are_named_by_their_ranks() -> None:
    job = joined(*map(pickled, HANGING.dumps().values()))

    assert [group.ranks for group in job.groups] == [(0, 1, 2, 3), (0, 1), (2, 3)]
    assert [(one.group, one.number) for one in job.ranks[0].pending] == [(0, 2), (1, 2)]
    assert job.ranks[2].pending == ()
    assert job.ranks[2].reached[0].enqueued == 1
    assert job.world == (0, 1, 2, 3)


def test_the_peer_of_a_transfer_is_a_global_rank() -> None:
    dump = HANGING.dumps()[2]
    dump["entries"] = [
        {
            "process_group": ["6", "PIPELINE"],
            "profiling_name": "nccl:send 0->1",
            "p2p_seq_id": 7,
            "is_p2p": True,
            "state": "started",
        }
    ]
    dump["pg_config"]["6"] = {"name": "6", "desc": "PIPELINE", "ranks": [2, 3]}
    (pending,) = joined(pickled(dump)).ranks[0].pending

    assert (pending.name, pending.peer, pending.is_send) == ("nccl:send", 3, True)
    assert pending.number == 7


def test_groups_that_no_dump_lists_have_the_ranks_that_used_them() -> None:
    dumps = list(HANGING.dumps().values())
    for dump in dumps:
        dump["pg_config"] = {"": {"desc": "", "name": "", "ranks": "[]"}}
        for entry in dump["entries"]:
            name = entry["process_group"][0]
            entry["process_group"] = (name, "default_pg" if name == "0" else "undefined")
    job = joined(*map(as_json, dumps))

    assert {group.called: group.ranks for group in job.groups} == {
        "default_pg (0)": (0, 1, 2, 3),
        "group 3": (0, 1),
        "group 6": (3,),
    }


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"{", "hang.invalid_dump", "neither a pickle nor JSON"),
        (as_json({"entries": []}), "hang.invalid_dump", "pg_config"),
        (
            pickled({"pg_config": {"0": {"ranks": "[0]"}}, "entries": 3}),
            "hang.invalid_dump",
            "entries",
        ),
    ],
)
def test_a_file_that_is_no_dump_is_refused_with_its_place(
    body: bytes, code: str, words: str
) -> None:
    with pytest.raises(InvalidTraceError, match=words) as refused:
        read_dump(body)
    assert refused.value.stable_code == code


def test_a_rank_has_one_dump() -> None:
    recorder = FlightRecorder()
    recorder.add(0, read_dump(pickled(HANGING.dumps()[0])))
    with pytest.raises(InvalidTraceError, match="Rank 0 has two dumps"):
        recorder.add(0, read_dump(pickled(HANGING.dumps()[0])))


def test_dumps_of_several_versions_are_read_together() -> None:
    dumps = HANGING.dumps()
    for entry in dumps[1]["entries"]:
        # the format of PyTorch 2.3
        entry["seq_id"] = entry.pop("collective_seq_id")
        del entry["is_p2p"], entry["p2p_seq_id"], entry["record_id"]
    for group in dumps[1]["pg_config"].values():
        group["ranks"] = json.loads(group["ranks"])
    dumps[3]["later"] = [{"nothing": "known"}]
    dumps[3]["pg_status"] = {int(key): value for key, value in dumps[3]["pg_status"].items()}

    as_they_were = joined(*map(pickled, HANGING.dumps().values()))
    assert joined(*map(pickled, dumps.values())) == as_they_were


def test_groups_of_too_many_ranks_together_are_refused() -> None:
    recorder = FlightRecorder()
    ranks = tuple(range(1 << 17))
    groups = tuple(RecordedGroup(str(number), "", ranks) for number in range(64))
    with pytest.raises(InvalidTraceError, match="ranks together") as refused:
        recorder.add(0, RecordedDump(groups, (), {}))
    assert refused.value.stable_code == "hang.too_large"


def test_values_that_are_shared_are_not_read_over_and_over() -> None:
    ranks = list(range(100_000))
    groups = {str(number): {"desc": "", "ranks": ranks} for number in range(1000)}
    with pytest.raises(InvalidTraceError, match="ranks together"):
        read_dump(pickle.dumps({"pg_config": groups}, protocol=2))

    value: list[object] = [8]
    for _ in range(60):
        value = [value, value]
    entry = {**HANGING.dumps()[0]["entries"][0], "input_sizes": value, "frames": value}
    dump = {**HANGING.dumps()[0], "entries": [entry] * 60_000}
    with pytest.raises(InvalidTraceError, match="input_sizes"):
        read_dump(pickle.dumps(dump, protocol=2))


def test_finished_collectives_are_not_kept() -> None:
    dump = HANGING.dumps()[0]
    over = {**dump["entries"][0], "state": "completed", "retired": True}
    dump["entries"] = [over] * 100_000 + dump["entries"]
    assert read_dump(pickled(dump)) == read_dump(pickled(HANGING.dumps()[0]))


def test_group_numbers_with_equal_hashes_are_refused() -> None:
    with pytest.raises(
        InvalidTraceError, match=r"pg_status\.11529215046068469755\.\[key\]"
    ) as caught:
        read_dump(flight_recorder())
    assert caught.value.stable_code == "hang.invalid_dump"


def test_entries_of_groups_with_equal_hashes_are_refused() -> None:
    entries = [{"pg_id": number, "state": "completed"} for number in equal_hashes()]
    with pytest.raises(InvalidTraceError, match="11529215046068469755 is beyond 64 bits"):
        read_dump(flight_recorder(entries=entries))


def test_an_integer_of_many_digits_is_named_in_short() -> None:
    body = flight_recorder(entries=[{"pg_id": 10**4000}])
    with pytest.raises(InvalidTraceError, match="integer 10000000000000000000… is beyond 64 bits"):
        read_dump(body)
