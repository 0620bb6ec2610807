"""The server's decoders accept the client's bodies; the two share no code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import ABSENT, KNOWN_OP_TYPES, Sizes
from app.errors import InvalidTraceError
from paceline_client import Recorder

if TYPE_CHECKING:
    from .conftest import Receiver

META = {
    "dp": 2, "pp": 2, "tp": 1, "cp": 1, "vpp": 1, "world": 4,
    "trial_name": "llama", "hosts": {"0": "node-017"}, "gpus": {"0": "3"},
    "labels": {"team": "search"},
}  # fmt: skip
# A time that a double cannot represent exactly.
START_NS = 1_760_000_000_123_456_789


def sent(receiver: Receiver, recorder: Recorder) -> bytes:
    recorder.finish()
    outcome = recorder.wait(30)
    assert outcome is not None
    assert outcome.error is None
    assert outcome.dropped == 0
    return receiver.requests[-1].body


def test_a_recorded_session_decodes_to_what_was_recorded(receiver: Receiver) -> None:
    recorder = Recorder(receiver.url, "llama", META)
    recorded: list[tuple[object, ...]] = []
    for step in (7, 8):
        for rank in range(4):
            dp, pp = rank % 2, rank // 2
            for mb in range(3):
                for op in ("forward-compute", "backward-compute"):
                    start_ns = START_NS + len(recorded) * 1001
                    recorder.op(rank, op, start_ns, 999, step=step, dp=dp, pp=pp, mb=mb, mc=0)
                    recorded.append((rank, dp, pp, step, op, mb, 0, start_ns, 999))
            start_ns = START_NS + len(recorded) * 1001
            recorder.op(np.int64(rank), "optimizer", start_ns, 5, step=step, dp=dp, pp=pp)
            recorded.append((rank, dp, pp, step, "optimizer", ABSENT, ABSENT, start_ns, 5))

    decoded = decode(
        sent(receiver, recorder), None, limits=Limits(), content_type="application/x-ndjson"
    )

    trace = decoded.trace
    assert decoded.trace_format == "ndjson"
    assert trace.meta.sizes == Sizes(dp=2, pp=2)
    assert trace.meta.trial_name == "llama"
    assert trace.meta.hosts == {0: "node-017"}
    assert trace.meta.gpus == {0: "3"}
    assert trace.meta.labels == {"team": "search"}
    assert not trace.step_relative
    names = [trace.op_names[code] for code in trace.op.tolist()]
    columns = (trace.rank, trace.dp, trace.pp, trace.step)
    times = (trace.mb, trace.mc, trace.start_ns, trace.duration_ns)
    rows = zip(
        *(column.tolist() for column in columns),
        names,
        *(column.tolist() for column in times),
        strict=True,
    )
    assert sorted(rows) == sorted(recorded)


def test_every_operation_type_that_the_server_knows_can_be_recorded(receiver: Receiver) -> None:
    recorder = Recorder(receiver.url, "llama", META)
    for number, op in enumerate(KNOWN_OP_TYPES):
        recorder.op(3, op, START_NS + number, 1, step=1, dp=1, pp=1, mb=0)

    trace = decode(sent(receiver, recorder), None, limits=Limits()).trace

    recorded = zip(trace.start_ns.tolist(), trace.op.tolist(), strict=True)
    assert [trace.op_names[code] for _, code in sorted(recorded)] == list(KNOWN_OP_TYPES)


def test_an_unusual_name_arrives_as_it_was_recorded(receiver: Receiver) -> None:
    recorder = Recorder(receiver.url, "llama", META)
    recorder.op(0, 'mine "ä" \\ {}', START_NS, 1, step=1, dp=0, pp=0)

    trace = decode(sent(receiver, recorder), None, limits=Limits()).trace

    assert trace.op_names[trace.op[0]] == 'mine "ä" \\ {}'


def test_a_session_without_operations_is_refused_in_words(receiver: Receiver) -> None:
    body = sent(receiver, Recorder(receiver.url, "llama", META))

    with pytest.raises(InvalidTraceError) as caught:
        decode(body, None, limits=Limits())

    assert caught.value.stable_code == "trace.no_rows"
