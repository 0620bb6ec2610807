"""Rows, beats, diagnostics and requested sessions of a rank."""

from __future__ import annotations

import copy
import gzip
import io
import json
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from app.analysis.pulse.columns import NO_BEAT, joined
from app.hangs.flight_recorder import read_dump
from app.hangs.ras import stack_of
from app.pulse.body import read_pulse
from tests.support.extras import of_real_jobs
from tests.support.waiting import wait_for
from tests.unit.client.conftest import Answer, Receiver

torch = of_real_jobs("torch")

from torch._dynamo.callback import callback_handler  # noqa: E402

import paceline_client.torch as paceline  # noqa: E402
from paceline_client.gpu import GpuMonitor  # noqa: E402
from paceline_client.pulse.rows import Row  # noqa: E402
from paceline_client.torch import attaching  # noqa: E402
from paceline_client.torch.layout import Layout  # noqa: E402
from paceline_client.torch.pulse import (  # noqa: E402
    MOST_BYTES,
    MOST_FRAMES,
    StepRows,
    pending_collectives,
    training_stack,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PLACE = Layout(dp=4, pp=2, dp_rank=3, pp_rank=1)


def test_own_work_of_a_rank_is_distinguished_from_its_waiting() -> None:
    rows: list[Row] = []
    steps = StepRows(7, PLACE, rows.append)
    # A step from 1,000 to 2,000: loading and a checkpoint, two microbatches, and the optimizer.
    steps.between("data-loading", 1_000, 60)
    steps.between("checkpoint", 1_060, 40)
    steps.outside("gc", 1_100, 10)
    steps.inside("params-all-gather", 1_150, 30)
    steps.outside("forward-compute", 1_140, 100)
    steps.between("data-loading", 1_240, 20)
    steps.inside("gc", 1_300, 5)
    steps.inside("grads-reduce-scatter", 1_310, 50)
    steps.outside("backward-compute", 1_260, 200)
    steps.outside("grads-reduce-scatter", 1_460, 40)
    steps.outside("optimizer", 1_500, 70)
    steps.end(5, 4096, {}, 9_000, 1_000, 2_000)
    steps.end(6, 0, {}, 9_100, 100, 2_100)

    # Waits inside and outside of computations are summed; garbage collection counts as computing,
    # not as loading.
    assert rows[0] == Row(5, 7, 3, 1, 9_000, 1_000, 70 + 150 + 10, 120, 110, 70, 15, 4096)
    assert rows[1] == Row(6, 7, 3, 1, 9_100, 100, 0, 0, 0, 0, 0, 0)


def test_evaluation_is_no_part_of_a_step_and_what_was_not_measured_is_as_what_was() -> None:
    rows: list[Row] = []
    steps = StepRows(0, Layout(), rows.append)
    steps.between("evaluation", 0, 500)
    steps.inside("params-all-gather", 610, 10)
    steps.outside("forward-compute", 600, 100)
    steps.outside("forward-recv", 700, 20)
    steps.end(0, 0, {"forward-compute": 3, "forward-recv": 1}, 1_000, 1_000, 1_000)

    row = rows[0]
    assert (row.step_ns, row.data_ns) == (500, 100)
    assert (row.compute_ns, row.wait_ns) == (4 * 90, 4 * 10 + 2 * 20)


def test_what_is_compiled_is_neither_computing_nor_loading() -> None:
    rows: list[Row] = []
    steps = StepRows(0, Layout(), rows.append)
    # Compilation before the first operation, inside a forward pass and a wait, and in the next
    # pass.
    steps.outside("compile", 0, 300)
    steps.inside("compile", 420, 500)
    steps.inside("params-all-gather", 930, 10)
    steps.outside("forward-compute", 400, 600)
    steps.outside("forward-compute", 1_000, 80)
    steps.inside("compile", 1_100, 40)
    steps.outside("backward-compute", 1_090, 60)
    steps.end(0, 0, {}, 9_000, 1_200, 1_200)

    row = rows[0]
    assert (row.compute_ns, row.wait_ns, row.data_ns) == (90 + 80 + 20, 10, 100)


def test_a_job_that_compiles_anew_says_so_and_computes_no_longer_than_before(
    receiver: Receiver, tmp_path: Path
) -> None:
    phases: list[str] = []

    def slow_backend(module: Any, _inputs: Any) -> Any:  # noqa: ANN401 - of PyTorch
        phases.append((monitor._tap.phase or ("",))[0])
        time.sleep(0.5)
        return module.forward

    monitor, model = attach(receiver, tmp_path)
    compiled = torch.compile(model, backend=slow_backend, dynamic=False)
    for batch in (1, 1, 2, 2):
        compiled(torch.zeros(batch, 4)).sum().backward()
        monitor.step()
    monitor.close(60)

    assert phases == ["compile", "compile"]
    bodies = [read_pulse(request.body, 1).rows for request in receiver.pulses]
    rows = joined([body.take(body.phase == NO_BEAT) for body in bodies])
    assert (rows.step_ns[[0, 2]] > 500_000_000).all()
    assert (rows.compute_ns < rows.step_ns - 500_000_000)[[0, 2]].all()
    # PyTorch's callbacks are restored.
    assert not any("paceline" in repr(one) for one in callback_handler.start_callbacks)


def attach(receiver: Receiver, spool: Path, **how: Any) -> tuple[paceline.Monitor, Any]:  # noqa: ANN401
    receiver.numbered = Answer(status=201, document={"attempt": 1})
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    monitor = paceline.attach(
        receiver.url, "llama", model=model, every=None, warmup=1, spool=spool, **how
    )
    return monitor, model


def train(monitor: paceline.Monitor, model: Any, steps: int) -> None:  # noqa: ANN401
    for step in range(steps):
        model(torch.zeros(1, 4)).sum().backward()
        monitor.step(tokens=100 + step)


def test_a_loop_sends_its_rows_and_that_it_has_finished(receiver: Receiver, tmp_path: Path) -> None:
    monitor, model = attach(receiver, tmp_path)
    train(monitor, model, 3)
    monitor.close(60)
    train(monitor, model, 1)

    rows = read_pulse(receiver.pulses[-1].body, 1).rows
    assert rows.step.tolist() == [0, 1, 2, 3]
    assert rows.tokens.tolist() == [100, 101, 102, 0]
    assert (rows.compute_ns[:3] > 0).all()
    assert rows.phases == ("finished",)


def test_without_the_pulse_nothing_is_sent_and_the_hooks_are_off(
    receiver: Receiver, tmp_path: Path
) -> None:
    monitor, model = attach(receiver, tmp_path, pulse=False)
    train(monitor, model, 2)
    monitor.close(60)
    assert receiver.pulses == []
    assert monitor.pulse_counts is None


def test_a_model_is_copied_and_saved_whole_while_its_pulse_is_sent(
    receiver: Receiver, tmp_path: Path
) -> None:
    monitor, model = attach(receiver, tmp_path)
    copied = copy.deepcopy(model)
    saved = io.BytesIO()
    torch.save(model, saved)
    assert b"paceline" not in saved.getvalue()
    saved.seek(0)
    for other in (copied, torch.load(saved, weights_only=False)):
        assert torch.equal(other(torch.ones(1, 4)), model(torch.ones(1, 4)))
    monitor.close(60)


def test_a_session_that_the_server_asks_for_is_recorded_within_the_budget(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.pulse = Answer(document={"record": {"steps": 3, "reason": "slow"}, "pulse_s": 0.1})
    budget = paceline.RecordBudget(share=1.0, every_s=3600.0)
    monitor, model = attach(receiver, tmp_path, record=budget)

    def recorded() -> bool:
        train(monitor, model, 1)
        return len(monitor.outcomes) == 1 and not monitor.recording

    wait_for(recorded, "a session was recorded")
    monitor.close(60)
    assert len(monitor.outcomes) == 1


def test_a_person_s_request_is_outside_of_the_budget(receiver: Receiver, tmp_path: Path) -> None:
    record = {"steps": 2, "reason": "Ada asked for it", "by": "person"}
    receiver.pulse = Answer(document={"record": record, "pulse_s": 0.1})
    nothing = paceline.RecordBudget(share=0.0)
    monitor, model = attach(receiver, tmp_path, record=nothing)

    def recorded() -> bool:
        train(monitor, model, 1)
        return len(monitor.outcomes) >= 2 and not monitor.recording

    wait_for(recorded, "two sessions were recorded")
    monitor.close(60)


def test_every_rank_records_its_tensor_collectives_when_the_server_asks_for_it(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answers = [Answer(status=201, document={"attempt": 1})]
    record = {"steps": 2, "reason": "which rank", "by": "notice", "every_rank": True}
    receiver.pulse = Answer(document={"record": record, "pulse_s": 0.1})
    nothing = paceline.RecordBudget(share=0.0)
    # The second rank of a tensor-parallel pair, which records no other sessions.
    layout = Layout(tp=2, tp_rank=1)
    monitor, model = attach(receiver, tmp_path, record=nothing, layout=layout)

    def recorded() -> bool:
        with monitor.span("tp-all-reduce"):
            pass
        train(monitor, model, 1)
        return len(monitor.outcomes) == 1 and not monitor.recording

    wait_for(recorded, "a session was recorded")
    monitor.wait(30)
    bodies = [r.body for r in receiver.requests if "/chunks/" in r.path]
    header, *rows = [json.loads(line) for line in gzip.decompress(bodies[0]).splitlines()]
    assert header["meta"]["producers"] == ["rank-0", "rank-1"]
    assert header["meta"]["recorded_by"]["level"] == "all"
    assert "tp-all-reduce" in {row["op"] for row in rows}
    # Afterwards the rank is as before, and a second such request is beyond the budget.
    for _ in range(5):
        recorded()
    assert len(monitor.outcomes) == 1
    monitor.close(60)


def test_a_job_that_wants_to_be_asked_records_nothing(receiver: Receiver, tmp_path: Path) -> None:
    receiver.pulse = Answer(document={"record": {"steps": 3, "reason": "slow"}, "pulse_s": 0.1})
    monitor, model = attach(receiver, tmp_path, record="ask")

    def asked() -> bool:
        train(monitor, model, 1)
        return len(receiver.pulses) > 2

    wait_for(asked, "some pulses")
    train(monitor, model, 5)
    monitor.close(60)
    assert monitor.outcomes == []


def told_by(receiver: Receiver) -> set[str]:
    """Return the names of all received files."""
    bodies = [json.loads(gzip.decompress(request.body)) for request in receiver.pulses]
    return {name for body in bodies for name in body.get("files", {})}


def test_a_job_says_which_lines_it_is_in_when_asked_and_nothing_without_stacks(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_PULSE_S", "0.1")
    receiver.pulse = Answer(document={"record": None, "pulse_s": 0.1, "files": True})
    monitor, model = attach(receiver, tmp_path / "silent", stacks=False)
    train(monitor, model, 2)
    wait_for(lambda: len(receiver.pulses) > 4, "some pulses")
    monitor.close(60)
    assert told_by(receiver) == set()

    monitor, model = attach(receiver, tmp_path / "speaking")
    train(monitor, model, 2)
    wait_for(lambda: "stack_0.json" in told_by(receiver), "the lines that it is in")
    monitor.close(60)


def test_a_gpu_whose_driver_hangs_delays_no_row(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    nvml = ModuleType("pynvml")
    nvml.nvmlInit = lambda: goes_on.wait(60)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(attaching, "_gpu_monitor", lambda: GpuMonitor("GPU-1", ""))

    monitor, model = attach(receiver, tmp_path)
    train(monitor, model, 3)
    monitor.close(60)
    # The driver still hangs.
    assert any(one.name == "paceline-nvml" for one in threading.enumerate())
    bodies = [read_pulse(request.body, 1) for request in receiver.pulses]
    assert sum(int((body.rows.phase == NO_BEAT).sum()) for body in bodies) == 3
    goes_on.set()


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
    assert any(frame.file.endswith("test_pulse.py") for frame in frames)
    assert json.loads(training_stack(0))[0]["frames"] == []


def test_only_functions_files_and_lines_of_a_stack_are_sent() -> None:
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
    """Return the dump once the recorder knows that all collectives are complete."""
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
    # All are complete: the last entry of a group is kept, for the group's name. The recorder
    # belongs to the process, so it also has entries of other tests' groups.
    own = [one for one in json.loads(told)["entries"] if one["input_sizes"] == [[2]]]
    assert [one["collective_seq_id"] for one in own] == [3]
    dump = read_dump(told)
    assert dump.pending == ()
    assert 3 in {one.enqueued for one in dump.reached.values()}


def test_only_the_first_of_many_pending_collectives_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [{"record_id": number, "retired": False, "much": "x" * 1000} for number in range(200)]
    dump = json.dumps({"entries": entries}).encode()
    known = torch._C._distributed_c10d
    monkeypatch.setattr(known, "_dump_fr_trace_json", lambda **_: dump, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    told = pending_collectives()
    assert told is not None
    assert [one["record_id"] for one in json.loads(told)["entries"]] == list(range(16))
