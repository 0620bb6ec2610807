from __future__ import annotations

import json
from typing import Any

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.metadata import Unmapped
from app.analysis.trace.model import SessionMeta, Sizes
from app.errors import InvalidMetadataError, InvalidTraceError
from tests.unit.analysis.trace.bodies import LIMITS
from tests.unit.analysis.trace.recordings.kineto_files import operations


def aggregated(dp: int = 1, pp: int = 2) -> list[dict[str, Any]]:
    """Return the events of two iterations in the format of the aggregating script."""
    events: list[dict[str, Any]] = []
    for iteration in range(2):
        for cell in range(dp * pp):
            at = iteration * 1_000_000 + cell * 100
            lane = {"pid": cell, "tid": 0}
            begin = {"iteration": iteration}
            end = {**begin, "microbatch": 0, "model_chunk": 0, "pp_rank": cell % pp}
            for name, phase, after, args in (
                ("iteration begin", "i", 0, begin),
                ("forward", "B", 10, begin),
                ("recv-extra", "B", 12, begin),
                ("recv-extra", "E", 14, begin),
                ("forward", "E", 110, end),
                ("backward", "B", 200, begin),
                ("backward", "E", 500, end),
                ("reduce", "i", 510, begin),
                ("iteration end", "i", 700, begin),
            ):
                events.append({"name": name, "ph": phase, "ts": at + after, **lane, "args": args})
    return events


def own(dp_rk: int = 1, pp_rk: int = 0) -> list[dict[str, Any]]:
    """Return the records of one rank's file, in ns from the begin of each iteration."""
    who = {"dp_rk": dp_rk, "pp_rk": pp_rk, "tp_rk": 0, "dev": 3, "g_rk": 3}
    records: list[dict[str, Any]] = []
    for pad in (0, 5_000):
        records += [
            {"name": "iteration", "ph": "B", "pad_before": pad},
            {"name": "forward", "ph": "B", "rel_ts": 100, **who},
            {"name": "forward", "ph": "E", "rel_ts": 1_100, "microbatch": 0, **who},
            {"name": "exchange-next", "ph": "B", "rel_ts": 1_200, **who},
            {"name": "exchange-next", "ph": "E", "rel_ts": 1_900, "data": None, **who},
            {"name": "backward", "ph": "B", "rel_ts": 2_000, **who},
            {"name": "backward", "ph": "E", "rel_ts": 4_000, "microbatch": 0, **who},
            {
                "name": "iteration",
                "ph": "E",
                "rel_ts": 9_000,
                "duration_wall": 10_000,
                "duration_cuda": 9_000,
                **who,
            },
            {"name": "forward", "ph": "B", "rel_ts": 7, **who},
        ]
    return records


def test_scopes_of_all_ranks_are_operations() -> None:
    decoded = decode(json.dumps(aggregated()).encode(), None, limits=LIMITS)
    trace = decoded.trace

    assert decoded.trace_format == "megascan"
    assert trace.meta.sizes == Sizes(dp=1, pp=2)
    stage = trace.pp == 1
    starts = dict(zip(trace.op[stage].tolist(), trace.start_ns[stage].tolist(), strict=True))
    # Of the second iteration, which is later.
    assert starts[trace.op_names.index("forward-compute")] == 1_000_110_000
    assert set(trace.step.tolist()) == {0, 1}
    assert len(trace) == 2 * 2 * 3
    assert decoded.unmapped == (Unmapped("scopes called recv-extra", 4),)


def test_with_replicas_reduction_and_optimizer_are_not_distinguished() -> None:
    decoded = decode(json.dumps(aggregated(dp=2)).encode(), None, limits=LIMITS)

    assert decoded.trace.meta.sizes == Sizes(dp=2, pp=2)
    assert sorted(set(decoded.trace.rank.tolist())) == [0, 1, 2, 3]
    # In Megatron's order, stage 1 of DP rank 0 is rank 2.
    assert set(decoded.trace.rank[decoded.trace.pp == 1].tolist()) == {2, 3}
    assert Unmapped("scopes called reduce", 8) in decoded.unmapped


def test_the_iterations_of_a_rank_follow_one_another() -> None:
    body = json.dumps(own()).encode()
    with pytest.raises(InvalidMetadataError) as caught:
        decode(body, None, limits=LIMITS)
    assert caught.value.stable_code == "metadata.missing"

    trace = decode(body, SessionMeta(Sizes(dp=2, pp=2)), limits=LIMITS).trace
    found = operations(trace)
    assert found[0, "forward-compute", 0] == (100, 1_000)
    assert found[1, "forward-compute", 0] == (15_100, 1_000)
    # A fused call is divided into its transfers.
    assert found[1, "forward-send", -1] == found[1, "backward-recv", -1] == (16_200, 700)
    assert set(trace.rank.tolist()) == {3}


@pytest.mark.parametrize(
    ("name", "phase"), [("backward", "E"), ("forward", "E")], ids=["another", "none open"]
)
def test_a_scope_that_did_not_begin_is_refused_with_its_place(name: str, phase: str) -> None:
    events = aggregated()
    events.insert(1, {**events[1], "name": name, "ph": phase})
    with pytest.raises(InvalidTraceError) as caught:
        decode(json.dumps(events).encode(), None, limits=LIMITS)
    assert caught.value.stable_code == "trace.unpaired_event"
    assert caught.value.faults[0].row == 1


def test_virtual_stages_without_microbatches_are_refused() -> None:
    events = aggregated()
    for event in events:
        if event["ph"] == "E":
            event["args"]["model_chunk"] = 1
            event["args"].pop("microbatch", None)
    with pytest.raises(InvalidTraceError) as caught:
        decode(json.dumps(events).encode(), None, limits=LIMITS)
    assert caught.value.stable_code == "trace.missing_microbatch"
