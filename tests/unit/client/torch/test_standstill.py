"""What a rank says that stands still."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from app.hangs.flight_recorder import read_dump
from app.hangs.ras import stack_of
from tests.support.extras import of_real_jobs
from tests.support.waiting import wait_for

torch = of_real_jobs("torch")

from paceline_client.torch.standstill import (  # noqa: E402
    MOST_BYTES,
    MOST_FRAMES,
    pending_collectives,
    training_stack,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def waits(depth: int, begun: threading.Event, end: threading.Event) -> None:
    if depth:
        waits(depth - 1, begun, end)
        return
    begun.set()
    end.wait()


def test_the_stack_of_the_training_thread_is_read_as_py_spys() -> None:
    begun, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=waits, args=(100, begun, end))
    thread.start()
    begun.wait()
    told = training_stack(thread.ident or 0)
    end.set()
    thread.join()

    frames = stack_of(told)
    assert len(frames) == MOST_FRAMES
    assert "waits" in {frame.function.rpartition(".")[2] for frame in frames}
    assert any(frame.file.endswith("test_standstill.py") for frame in frames)
    assert json.loads(training_stack(0))[0]["frames"] == []


def test_of_a_stack_only_functions_files_and_lines_are_told() -> None:
    begun, end = threading.Event(), threading.Event()

    def trains(batch: str) -> None:
        prompt = f"{batch} of a customer"
        begun.set()
        end.wait()
        assert prompt

    thread = threading.Thread(target=trains, args=("a secret",))
    thread.start()
    begun.wait()
    told = training_stack(thread.ident or 0)
    end.set()
    thread.join()

    (one,) = json.loads(told)
    assert one.keys() == {"pid", "thread_name", "frames"}
    assert {key for frame in one["frames"] for key in frame} == {"name", "filename", "line"}
    assert any(frame["name"].endswith("trains") for frame in one["frames"])
    assert b"secret" not in told


def all_over() -> bytes | None:
    """Return the dump once the recorder knows that all are over, which it learns late."""
    told = pending_collectives()
    return told if told is not None and not read_dump(told).pending else None


def test_what_the_recorder_holds_is_read_as_a_dump(tmp_path: Path) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for _ in range(3):
            torch.distributed.all_reduce(torch.ones(2))
        told = wait_for(all_over, "dump of collectives that are over")
    finally:
        torch.distributed.destroy_process_group()
    assert told is not None
    assert len(told) <= MOST_BYTES
    # All are over: the last one tells how the group is called whose numbers were reached. The
    # recorder is the process's: it also holds those of groups that other tests had.
    own = [one for one in json.loads(told)["entries"] if one["input_sizes"] == [[2]]]
    assert [one["collective_seq_id"] for one in own] == [3]
    dump = read_dump(told)
    assert dump.pending == ()
    assert 3 in {one.enqueued for one in dump.reached.values()}


def test_of_much_that_is_pending_the_first_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [{"record_id": number, "retired": False, "much": "x" * 1000} for number in range(200)]
    dump = json.dumps({"entries": entries}).encode()
    known = torch._C._distributed_c10d
    monkeypatch.setattr(known, "_dump_fr_trace_json", lambda **_: dump, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    told = pending_collectives()
    assert told is not None
    assert [one["record_id"] for one in json.loads(told)["entries"]] == list(range(16))
