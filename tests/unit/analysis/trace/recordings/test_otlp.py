"""Bodies after OTLP's schema and Megatron-LM's public list of spans; none was recorded by it."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.trace.decode import decode
from app.analysis.trace.model import SessionMeta, Sizes
from app.analysis.trace.ranks.machine import Machine
from app.analysis.trace.unmapped import Unmapped
from app.errors import InvalidMetadataError, InvalidTraceError, UnsupportedFormatError
from tests.support.nightly import drawn
from tests.unit.analysis.trace.bodies import LIMITS
from tests.unit.analysis.trace.recordings.test_kineto import operations

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCH_NS = 1_760_000_000_123_456_789


def attribute(key: str, value: object) -> dict[str, Any]:
    """Return an attribute as protobuf's JSON has it: 64-bit integers are text."""
    kind = "stringValue" if isinstance(value, str) else "intValue"
    return {"key": key, "value": {kind: str(value)}}


def span(name: str, start: int, end: int, **said: object) -> dict[str, Any]:
    return {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": "eee19b7ec3c1b174",
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(EPOCH_NS + start),
        "endTimeUnixNano": str(EPOCH_NS + end),
        "attributes": [attribute(f"megatron.{key}", value) for key, value in said.items()],
        "status": {},
    }


def resource(rank: int = 1, **said: object) -> dict[str, Any]:
    known = {
        "dl.rank": rank,
        "dl.world_size": 2,
        "dl.data_parallel.size": 1,
        "dl.data_parallel.rank": 0,
        "dl.pipeline_parallel.size": 2,
        "dl.pipeline_parallel.rank": rank,
        "dl.tensor_parallel.size": 1,
        "host.name": "node-017",
        **said,
    }
    return {
        "attributes": [attribute(key, value) for key, value in known.items() if value is not None]
    }


def body(spans: list[dict[str, Any]], who: dict[str, Any] | None = None) -> bytes:
    scope = {"scope": {"name": "nemo.lens"}, "spans": spans}
    batch = {"resource": who or resource(), "scopeSpans": [scope]}
    return json.dumps({"resourceSpans": [batch]}).encode()


def step(number: int = 7, at: int = 0) -> list[dict[str, Any]]:
    return [
        span("megatron.train_step", at, at + 900, iteration=number),
        span("megatron.forward_backward", at + 5, at + 700, num_microbatches=1),
        span("megatron.p2p.recv_forward", at + 10, at + 20),
        span("megatron.microbatch.forward", at + 20, at + 120, microbatch_id=0),
        span("megatron.microbatch.backward", at + 200, at + 450),
        span("megatron.optimizer_step", at + 800, at + 890),
    ]


def test_spans_of_microbatches_are_operations_of_their_step() -> None:
    decoded = decode(body([*step(7), *step(8, 1_000)]), None, limits=LIMITS)
    trace, found = decoded.trace, operations(decoded.trace)

    assert decoded.trace_format == "otel"
    assert trace.meta.sizes == Sizes(dp=1, pp=2)
    assert trace.meta.hosts == {1: "node-017"}
    # Host times are marked as such.
    assert trace.meta.extra["clock"] == "host"
    assert found[7, "forward-compute", 0] == (EPOCH_NS + 20, 100)
    assert found[8, "backward-compute", -1] == (EPOCH_NS + 1_200, 250)
    assert len(found) == 8
    assert (set(trace.pp.tolist()), set(trace.rank.tolist())) == ({1}, {1})
    assert decoded.unmapped == ()


def test_the_node_of_a_resource_is_better_than_its_host() -> None:
    names: dict[str, Any] = {
        "k8s.node.name": "node-7", "k8s.pod.name": "llama-1", "k8s.namespace.name": "ml",
        "hw.id": "GPU-5a3f", "slurm.job.id": "4711",
    }  # fmt: skip
    meta = decode(body(step(), resource(**names)), None, limits=LIMITS).trace.meta
    assert meta.machine(1) == Machine("node-7", uuid="GPU-5a3f", pod="ml/llama-1")
    assert meta.whereabouts.launcher == {"name": "slurm", "job": "4711"}
    # A pod does not say which node its host is.
    in_pod: dict[str, Any] = {"k8s.pod.name": "llama-1"}
    meta = decode(body(step(), resource(**in_pod)), None, limits=LIMITS).trace.meta
    assert meta.machine(1) == Machine("node-017", guessed=True, pod="llama-1")
    # What is sent with the recording comes first.
    known = SessionMeta(Sizes(dp=1, pp=2), hosts={1: "rack-2-7"})
    assert decode(body(step(), resource(**names)), known, limits=LIMITS).trace.meta.hosts == {
        1: "rack-2-7"
    }


def test_bodies_of_a_collector_stand_on_lines() -> None:
    text = body(step(7)) + b"\n" + body(step(7), resource(0)) + b"\n"
    trace = decode(text, None, limits=LIMITS).trace

    assert set(trace.rank.tolist()) == {0, 1}
    assert set(trace.meta.hosts) == {0, 1}


def test_without_spans_of_microbatches_the_group_is_named() -> None:
    with pytest.raises(InvalidTraceError, match=r"SPAN_GROUPS=.*microbatch") as caught:
        decode(body(step()[:2]), None, limits=LIMITS)
    assert caught.value.stable_code == "trace.no_microbatches"


def test_other_spans_are_counted() -> None:
    others = [span("megatron.layer.forward", 30, 40), span("GET /", 1, 2), span("POST /", 1, 2)]
    late = [span("megatron.microbatch.forward", 5_000, 5_001, microbatch_id=1)]
    decoded = decode(body([*step(), *others, *late]), None, limits=LIMITS)

    assert set(decoded.unmapped) == {
        Unmapped("spans of other programs", 2),
        Unmapped("spans megatron.layer.forward", 1),
        Unmapped("operations outside of a step", 1, "MEGATRON_OTEL_SPAN_GROUPS=per_step"),
    }


def test_sizes_that_the_resources_do_not_say_are_given_apart() -> None:
    silent = resource(
        3,
        **{
            f"dl.{kind}_parallel.{what}": None
            for kind in ("data", "pipeline", "tensor")
            for what in ("size", "rank")
        },
    )
    with pytest.raises(InvalidMetadataError) as caught:
        decode(body(step(), silent), None, limits=LIMITS)
    assert caught.value.stable_code == "metadata.missing"

    trace = decode(body(step(), silent), SessionMeta(Sizes(dp=2, pp=2)), limits=LIMITS).trace
    assert (trace.dp[0], trace.pp[0]) == (1, 1)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"startTimeUnixNano": None}, "trace.missing_key"),
        ({"startTimeUnixNano": "soon"}, "trace.wrong_type"),
        ({"attributes": 3}, "trace.bad_event"),
        ({"name": 3}, "trace.wrong_type"),
    ],
)
def test_a_fault_has_the_place_of_its_batch(changed: dict[str, Any], code: str) -> None:
    spans = step()
    spans[3] |= changed
    with pytest.raises(InvalidTraceError) as caught:
        decode(body(spans), None, limits=LIMITS)
    assert caught.value.stable_code == code
    assert caught.value.faults[0].row == 0


def test_a_resource_without_a_rank_is_refused() -> None:
    with pytest.raises(InvalidTraceError) as caught:
        decode(body(step(), {"attributes": []}), None, limits=LIMITS)
    assert caught.value.stable_code == "trace.unknown_rank"


@drawn(60)
@given(
    times=st.lists(
        st.tuples(st.integers(0, 1 << 61), st.integers(0, 1 << 40)),
        min_size=1,
        max_size=8,
        unique_by=lambda pair: pair[0],
    )
)
def test_times_are_exact_to_the_nanosecond(times: list[tuple[int, int]]) -> None:
    spans = [
        {
            **span("megatron.microbatch.forward", 0, 0, microbatch_id=mb, iteration=3),
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(start + duration),
        }
        for mb, (start, duration) in enumerate(times)
    ]
    trace = decode(body(spans), None, limits=LIMITS).trace

    read = zip(trace.mb.tolist(), trace.start_ns.tolist(), trace.duration_ns.tolist(), strict=True)
    assert sorted(read) == [(mb, *pair) for mb, pair in enumerate(times)]


def protobuf(*fields: tuple[int, bytes]) -> bytes:
    """Write length-delimited fields, as OTLP's messages are made of."""
    written = b""
    for number, value in fields:
        size, length = len(value), b""
        while size > 0x7F:
            length += bytes((size & 0x7F | 0x80,))
            size >>= 7
        written += bytes((number << 3 | 2,)) + length + bytes((size,)) + value
    return written


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("name", [None, "otel"])
def test_protobuf_is_refused_with_what_to_do(
    name: str | None, compress: Callable[[bytes], bytes]
) -> None:
    attributes = [
        protobuf((1, key), (2, protobuf((1, value))))
        for key, value in ((b"telemetry.sdk.language", b"python"), (b"service.name", b"megatron"))
    ]
    spans = protobuf((2, protobuf(*((2, protobuf((5, b"megatron.train_step"))),) * 40)))
    resource_spans = protobuf((1, protobuf(*((1, one) for one in attributes)))) + spans
    with pytest.raises(UnsupportedFormatError, match="collector") as caught:
        decode(compress(protobuf((1, resource_spans))), None, limits=LIMITS, format_name=name)
    assert caught.value.stable_code == "trace.protobuf"
