from __future__ import annotations

import gzip
import json
import logging
import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from paceline_client.ndtimeline import PacelineNDHandler
from tests.unit.client.conftest import Answer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.client.conftest import Receiver


@dataclass
class Topology:
    """The fields of `vescale.ndtimeline.world_info.TopoInfo`."""

    rank: int = 3
    dp_rank: int = 1
    tp_rank: int = 0
    pp_rank: int = 1
    ip: str = "10.0.0.7"
    dp_size: int = 2
    tp_size: int = 1
    pp_size: int = 2
    world_size: int = 4


@dataclass
class Training:
    trial_id: int = 7
    run_id: int = 2


@dataclass
class World:
    topo_info: Topology = field(default_factory=Topology)
    training_info: Training = field(default_factory=Training)


def call(handler: PacelineNDHandler, metric: str, *, steps: range, parts: int = 0) -> None:
    starts = [1_760_000_000.0 + 0.5 * part for part in range(parts)]
    handler.call_impl(metric, 0.1, [0.25] * parts, starts, [{}] * parts, steps, World(), {})


@pytest.fixture
def handler(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> PacelineNDHandler:
    monkeypatch.setenv("PACELINE_SPOOL", str(tmp_path))
    made = PacelineNDHandler(receiver.url, "llama", {"vpp": 1}, steps=10)
    sent: PacelineNDHandler = pickle.loads(pickle.dumps(made))  # noqa: S301 - as NDTimeline does
    return sent


def test_a_session_is_sent_when_a_chunk_ends_with_its_last_step(
    handler: PacelineNDHandler, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_NODE", "node-7")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    receiver.answers = [Answer(status=201, document={"attempt": 1})]
    call(handler, "forward-compute", steps=range(10, 15), parts=20)
    call(handler, "special", steps=range(10, 15))
    assert receiver.requests == []
    call(handler, "forward-compute", steps=range(15, 20), parts=20)
    call(handler, "special", steps=range(15, 20))
    handler.wait(30)

    attempt, chunk = receiver.requests
    assert json.loads(attempt.body) == {"run_id": "7/2", "restart": 0}
    assert "/sessions/11/chunks/rank-3/0" in chunk.path
    header, *rows = [json.loads(line) for line in gzip.decompress(chunk.body).splitlines()]
    assert header["meta"] == {
        "dp": 2, "pp": 2, "tp": 1, "vpp": 1, "world": 4, "hosts": {"3": "node-7"},
    }  # fmt: skip
    assert [row["step"] for row in rows] == [step for step in range(10, 20) for _ in range(4)]
    assert rows[1] == {
        "rank": 3, "dp": 1, "pp": 1, "step": 10, "op": "forward-compute",
        "start_ns": 1_760_000_000_500_000_000, "dur_ns": 250_000_000,
    }  # fmt: skip


def test_operations_that_steps_do_not_share_evenly_are_left_out_with_a_warning(
    handler: PacelineNDHandler, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "paceline_client"):
        call(handler, "forward-compute", steps=range(10, 13), parts=4)
    assert "4 parts cannot be divided evenly over 3 steps" in caplog.text


def test_a_step_of_its_own_comes_before_the_range(handler: PacelineNDHandler) -> None:
    tags = [{"_inner_global_step": 4}, {"_inner_global_step": 5}]
    handler.call_impl("gc", 0, [0.1, 0.1], [1.0, 2.0], tags, range(99, 100), World(), {})
    assert handler._newest == {3: 5}
    handler.close()
    handler.wait(30)
