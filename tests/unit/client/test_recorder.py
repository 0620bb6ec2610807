from __future__ import annotations

import gzip
import json
import logging
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paceline_client import Recorder, RetryPolicy, Share, Spool
from paceline_client.operations import Backlog, OperationBuffer, SessionBody, unpacked

from .conftest import Answer

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Receiver

META = {"dp": 2, "pp": 1, "tp": 1, "cp": 1, "vpp": 1, "world": 2}
QUICK = RetryPolicy(give_up_after_s=10, first_wait_s=0.001, longest_wait_s=0.01, timeout_s=10)
GIVE_UP_AT_ONCE = RetryPolicy(give_up_after_s=0, timeout_s=10)


def lines(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(body).splitlines()]


def record(recorder: Recorder, number: int) -> None:
    recorder.op(
        number % 2, "forward-compute", 10**18 + number, 5, step=1, dp=number % 2, pp=0, mb=number
    )


def test_a_session_arrives_as_a_header_and_a_line_for_each_operation(receiver: Receiver) -> None:
    recorder = Recorder(receiver.url, "llama", META, retry=QUICK)
    recorder.op(0, "forward-compute", 10**18, 7, step=3, dp=0, pp=0, mb=2, mc=1)
    recorder.op(1, "optimizer", 10**18 + 9, 8, step=3, dp=1, pp=0)
    recorder.finish()
    outcome = recorder.wait(30)

    assert outcome is not None
    assert outcome.error is None
    assert (outcome.recorded, outcome.dropped) == (2, 0)
    (request,) = receiver.requests
    header, first, second = lines(request.body)
    assert header == {"schema": "paceline.trace/1", "meta": META}
    assert first == {
        "rank": 0, "dp": 0, "pp": 0, "step": 3, "op": "forward-compute",
        "start_ns": 10**18, "dur_ns": 7, "mb": 2, "mc": 1,
    }  # fmt: skip
    assert second == {
        "rank": 1, "dp": 1, "pp": 0, "step": 3, "op": "optimizer",
        "start_ns": 10**18 + 9, "dur_ns": 8,
    }  # fmt: skip


def test_a_share_is_put_as_the_last_chunk_of_its_producer(receiver: Receiver) -> None:
    share = Share(session=14, producer="host a", attempt=2)
    recorder = Recorder(receiver.url, "llama 7b", META, share=share, retry=QUICK)
    record(recorder, 1)
    recorder.finish()
    outcome = recorder.wait(30)

    assert outcome is not None
    assert outcome.error is None
    (request,) = receiver.requests
    assert request.method == "PUT"
    assert request.path == (
        "/api/v1/jobs/llama%207b/attempts/2/sessions/14/chunks/host%20a/0?final=true"
    )
    assert len(lines(request.body)) == 2


@pytest.mark.parametrize(
    "share", [Share(0, "a"), Share(1, "a", attempt=0), Share(1, ""), Share(1, "a/b")]
)
def test_a_share_that_cannot_be_is_not_sent(receiver: Receiver, share: Share) -> None:
    outcome = Recorder(receiver.url, "llama", META, share=share, retry=QUICK).wait(30)
    assert outcome is not None
    assert outcome.error is not None
    assert "numbered from 1" in outcome.error
    assert receiver.requests == []


def test_equal_sessions_are_equal_bytes_so_that_sending_twice_is_harmless(
    receiver: Receiver,
) -> None:
    for _ in range(2):
        recorder = Recorder(receiver.url, "llama", META, retry=QUICK)
        for number in range(1000):
            record(recorder, number)
        recorder.finish()
        assert recorder.wait(30) is not None

    first, second = receiver.requests
    assert first.body == second.body


def test_operations_of_several_threads_all_arrive(receiver: Receiver) -> None:
    recorder = Recorder(receiver.url, "llama", META, retry=QUICK)

    def train(start: int) -> None:
        for number in range(start, start + 500):
            record(recorder, number)

    threads = [threading.Thread(target=train, args=(start,)) for start in (0, 500, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.finish()
    outcome = recorder.wait(30)

    assert outcome is not None
    assert (outcome.recorded, outcome.dropped) == (1500, 0)
    assert sorted(line["mb"] for line in lines(receiver.requests[0].body)[1:]) == list(range(1500))


def test_a_full_buffer_drops_whole_steps_counts_and_names_them(receiver: Receiver) -> None:
    recorder = Recorder(receiver.url, "llama", META, buffer_operations=0, retry=QUICK)
    for number in range(10):
        record(recorder, number)
    recorder.finish()
    outcome = recorder.wait(30)

    assert outcome is not None
    assert (outcome.recorded, outcome.dropped) == (0, 10)
    assert outcome.dropped_steps == (1,)
    (header,) = lines(receiver.requests[0].body)
    assert header["meta"]["dropped_steps"] == {"all": [1]}


def test_a_step_that_lost_an_operation_is_left_out_whole(receiver: Receiver) -> None:
    share = Share(session=1, producer="rank-1")
    recorder = Recorder(receiver.url, "llama", META, share=share, retry=QUICK)
    buffer = recorder._buffer
    for step in (1, 2, 3):
        recorder.op(1, "forward-compute", 10**18, 5, step=step, dp=1, pp=0, mb=0)
    buffer.dropped_steps.add(2)
    recorder.finish()
    outcome = recorder.wait(30)

    assert outcome is not None
    assert (outcome.recorded, outcome.dropped, outcome.dropped_steps) == (2, 1, (2,))
    header, *rows = lines(receiver.requests[0].body)
    assert [row["step"] for row in rows] == [1, 3]
    assert header["meta"]["dropped_steps"] == {"rank-1": [2]}


@pytest.mark.slow
def test_a_burst_that_the_memory_does_not_hold_goes_to_the_spool(tmp_path: Path) -> None:
    buffer = OperationBuffer(50_000)
    backlog = Backlog(buffer, Spool(tmp_path), in_memory=10_000)
    for number in range(150_000):
        buffer.add("gc", 0, 0, 0, None, 1, number, 1, None, None)
        if number % 20_000 == 0:
            backlog.refill()
    backlog.refill()

    assert (buffer.dropped, backlog._held <= 10_000) == (0, True)
    taken: list[int] = []
    while chunk := backlog.next():
        taken += [operation.start_ns for operation in unpacked(chunk)]
        backlog.done(chunk)
    assert taken == list(range(150_000))
    assert buffer._held == 0
    assert not list(tmp_path.iterdir()), "the overflow has no name"
    backlog.close()


def test_without_room_in_the_spool_a_burst_is_dropped_and_its_step_named(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("no folder")
    buffer = OperationBuffer(10_000)
    backlog = Backlog(buffer, Spool(tmp_path / "spool"), in_memory=1_000)
    for number in range(20_000):
        buffer.add("gc", 0, 0, 0, None, 7, number, 1, None, None)
        if number % 5_000 == 0:
            backlog.refill()

    assert buffer.dropped == 10_000
    assert buffer.dropped_steps == {7}


def test_metadata_may_be_added_until_the_end(receiver: Receiver) -> None:
    recorder = Recorder(receiver.url, "llama", {**META, "hosts": {"0": "a"}}, retry=QUICK)
    record(recorder, 1)
    recorder.describe({"sequence_lengths": {"1": [[[5]], [[5]]]}, "hosts": {"1": "b"}})
    recorder.finish()
    assert recorder.wait(30) is not None

    meta = lines(receiver.requests[0].body)[0]["meta"]
    assert meta["hosts"] == {"0": "a", "1": "b"}
    assert meta["sequence_lengths"] == {"1": [[[5]], [[5]]]}


def test_steps_that_are_not_complete_are_left_out_and_not_counted(receiver: Receiver) -> None:
    recorder = Recorder(receiver.url, "llama", META, retry=QUICK)
    recorder.op(0, "optimizer", 10**18, 5, step=1, dp=0, pp=0)
    recorder.op(0, "optimizer", 10**18, 5, step=2, dp=0, pp=0)
    recorder.leave_out([2])
    recorder.finish()
    outcome = recorder.wait(30)

    assert outcome is not None
    assert (outcome.recorded, outcome.dropped, outcome.dropped_steps) == (1, 0, ())
    assert [row["step"] for row in lines(receiver.requests[0].body)[1:]] == [1]


def test_steps_that_are_left_out_take_no_memory_however_many(receiver: Receiver) -> None:
    # The end of a window may be as far away as was requested.
    recorder = Recorder(receiver.url, "llama", META, retry=QUICK)
    recorder.op(0, "optimizer", 10**18, 5, step=1, dp=0, pp=0)
    recorder.leave_out(range(2, 10**18))
    recorder.finish()
    outcome = recorder.wait(30)

    assert outcome is not None
    assert outcome.recorded == 1


def test_a_body_over_its_limit_leaves_out_the_steps_that_follow() -> None:
    # Random, so that zlib returns compressed bytes between two batches.
    random = np.random.default_rng(1)
    body = SessionBody(max_bytes=4096)
    buffer = OperationBuffer(100_000)
    left_out = 0
    for step in range(100):
        for start in random.integers(0, 2**62, 256).tolist():
            buffer.add("gc", 0, 0, 0, None, step, start, 1, None, None)
        for chunk in buffer.take():
            left_out += body.add(chunk, buffer.names)
    whole, recorded = body.close(META)

    kept = lines(whole)[1:]
    assert left_out > 0
    assert len(kept) == recorded == 25_600 - left_out
    assert {row["step"] for row in kept} == set(range(100)) - body.left_out
    assert len(whole) < 200_000


def test_values_that_are_no_integers_are_dropped_and_counted(receiver: Receiver) -> None:
    recorder = Recorder(receiver.url, "llama", META, retry=QUICK)
    recorder.op(0, "gc", 1.5, 1, step=1, dp=0, pp=0)  # type: ignore[arg-type]
    recorder.op(0, None, 1, 1, step=1, dp=0, pp=0)  # type: ignore[arg-type]
    recorder.op(np.int32(0), "gc", np.int64(1), np.int64(1), step=1, dp=0, pp=0)
    recorder.finish()
    outcome = recorder.wait(30)

    assert outcome is not None
    assert (outcome.recorded, outcome.dropped) == (1, 2)
    assert lines(receiver.requests[0].body)[1]["start_ns"] == 1


def test_operations_after_the_end_are_dropped_and_counted(receiver: Receiver) -> None:
    recorder = Recorder(receiver.url, "llama", META, retry=QUICK)
    recorder.finish()
    assert recorder.wait(30) is not None
    record(recorder, 0)

    assert recorder.outcome().dropped == 1


def test_a_refusal_is_returned_and_logged_and_raises_nothing(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answers = [Answer(status=422, document={"code": "trace.invalid", "detail": "no rows"})]
    with caplog.at_level(logging.WARNING, "paceline_client"):
        recorder = Recorder(receiver.url, "llama", META, retry=QUICK)
        recorder.finish()
        outcome = recorder.wait(30)

    assert outcome is not None
    assert outcome.delivery is None
    assert outcome.error is not None
    assert outcome.error.endswith("422 [trace.invalid]: no rows")
    assert outcome.error in caplog.text


@pytest.mark.parametrize(
    ("server", "meta"),
    [("nowhere", META), ("http://127.0.0.1:1", {"dp": object()}), ("http://[", META)],
)
def test_a_recorder_that_cannot_send_records_nothing_and_says_why(
    server: str, meta: dict[str, Any]
) -> None:
    recorder = Recorder(server, "llama", meta, retry=GIVE_UP_AT_ONCE)
    record(recorder, 0)
    recorder.finish()
    outcome = recorder.wait(30)

    assert outcome is not None
    assert outcome.error is not None
    assert (outcome.recorded, outcome.dropped) == (0, 1)


def test_a_process_that_ends_does_not_wait_for_a_server_that_is_away(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answers = [Answer(status=503, headers={"Retry-After": "600"})]
    recorder = Recorder(
        receiver.url, "llama", META, share=Share(1, "rank-0"), spool=Spool(tmp_path)
    )
    record(recorder, 0)
    recorder.finish()
    recorder.stop_retrying()
    outcome = recorder.wait(30)

    assert outcome is not None
    assert outcome.spooled is not None
    assert outcome.spooled.exists()
    assert len(receiver.requests) == 1


def test_waiting_ends_with_its_time() -> None:
    recorder = Recorder("http://127.0.0.1:1", "llama", META, retry=GIVE_UP_AT_ONCE)

    assert recorder.wait(0.01) is None
    recorder.finish()
    assert recorder.wait(30) is not None
