"""Bodies by OTLP's schema and Megatron-LM's public list of spans; none was recorded by it."""

from __future__ import annotations

import gzip
import io
import json
from typing import TYPE_CHECKING, Any, Final

import pytest
import zstandard
from google.protobuf import json_format
from google.protobuf.proto import serialize_length_prefixed
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app.analysis.trace.decode import decode
from app.analysis.trace.metadata import Unmapped, metadata_document, parse_metadata
from app.analysis.trace.model import SessionMeta, Sizes
from app.analysis.trace.rank_metadata import Machine
from app.analysis.trace.recordings.labels import OwnRanges, RangeRule
from app.errors import InvalidMetadataError, InvalidTraceError
from tests.support.nightly import drawn
from tests.unit.analysis.trace.bodies import LIMITS
from tests.unit.analysis.trace.recordings.kineto_files import operations

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.analysis.trace.model import Trace

EPOCH_NS = 1_760_000_000_123_456_789


def attribute(key: str, value: object) -> dict[str, Any]:
    """Return an attribute in protobuf's JSON encoding, where 64-bit integers are text."""
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
    # Times of the host are marked.
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
    # The name of a pod does not identify its node.
    in_pod: dict[str, Any] = {"k8s.pod.name": "llama-1"}
    meta = decode(body(step(), resource(**in_pod)), None, limits=LIMITS).trace.meta
    assert meta.machine(1) == Machine("node-017", guessed=True, pod="llama-1")
    # Metadata that are sent with the recording take precedence.
    known = SessionMeta(Sizes(dp=1, pp=2), hosts={1: "rack-2-7"})
    assert decode(body(step(), resource(**names)), known, limits=LIMITS).trace.meta.hosts == {
        1: "rack-2-7"
    }


def test_bodies_of_a_collector_are_on_lines() -> None:
    text = body(step(7)) + b"\n" + body(step(7), resource(0)) + b"\n"
    trace = decode(text, None, limits=LIMITS).trace

    assert set(trace.rank.tolist()) == {0, 1}
    assert set(trace.meta.hosts) == {0, 1}


def test_without_spans_of_microbatches_the_group_is_named() -> None:
    with pytest.raises(InvalidTraceError, match=r"SPAN_GROUPS=.*microbatch") as caught:
        decode(body(step()[:2]), None, limits=LIMITS)
    assert caught.value.stable_code == "trace.no_microbatches"


def test_without_any_span_no_group_of_spans_is_advised() -> None:
    with pytest.raises(InvalidTraceError, match="there are no spans in the file") as caught:
        decode(body([]), None, limits=LIMITS)
    assert caught.value.stable_code == "trace.no_microbatches"


def loop(rank: int) -> dict[str, Any]:
    """Return spans of two steps of a loop that trains with rollouts, of a rank."""
    spans = []
    for step in range(2):
        at = step * 1_000
        spans += [
            span(f"trainer.step {step}", at, at + 900),
            span("rollout.generate", at, at + 400 + 100 * rank),
            span("train.update", at + 500 + 100 * rank, at + 800),
        ]
    attributes = [attribute("service.name", "trainer"), attribute("rank", rank)]
    return {"resource": {"attributes": attributes}, "scopeSpans": [{"spans": spans}]}


def loops() -> bytes:
    return json.dumps({"resourceSpans": [loop(rank) for rank in range(2)]}).encode()


@pytest.mark.parametrize("form", ["json", "protobuf"])
def test_spans_of_another_program_are_named(form: str) -> None:
    sent = loops() if form == "json" else request(loops())
    with pytest.raises(InvalidTraceError) as caught:
        decode(sent, None, limits=LIMITS)
    assert caught.value.stable_code == "trace.no_labels"
    assert (
        "'rollout.generate' (4), 'train.update' (4), 'trainer.step 0' (2)" in caught.value.message
    )
    assert "MEGATRON" not in caught.value.message
    assert "--labels" in caught.value.message


def test_spans_of_another_program_are_read_with_labels() -> None:
    rules = [
        ("trainer.step (?P<step>[0-9]+)", "step"),
        ("rollout.generate", "forward-compute"),
        ("train.update", "backward-compute"),
    ]
    own = OwnRanges(tuple(RangeRule(pattern, op, 1) for pattern, op in rules))
    decoded = decode(loops(), SessionMeta(Sizes(dp=2, pp=1)), limits=LIMITS, own=own)
    found = operations(decoded.trace)
    assert {(step, op) for step, op, _ in found} == {
        (step, op) for step in (0, 1) for op in ("forward-compute", "backward-compute")
    }
    assert sorted(set(decoded.trace.rank.tolist())) == [0, 1]


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


def request(text: bytes) -> bytes:
    """Return a body of OTLP's JSON, encoded in protobuf as by an exporter."""
    return json_format.Parse(text, ExportTraceServiceRequest()).SerializeToString()


def delimited(*messages: bytes) -> bytes:
    """Write messages in the format of the SDKs' file exporters."""
    file = io.BytesIO()
    for message in messages:
        serialize_length_prefixed(ExportTraceServiceRequest.FromString(message), file)
    return file.getvalue()


def prefixed(*messages: bytes) -> bytes:
    """Write messages in the format of the collector's file exporter."""
    return b"".join(len(message).to_bytes(4, "big") + message for message in messages)


def zstd(message: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(message)


TWO_RANKS: Final = (body(step(7)), body(step(7), resource(0)))
FORMS: Final[dict[str, Callable[[list[bytes]], bytes]]] = {
    "requests": b"".join,
    "gzip": lambda messages: gzip.compress(b"".join(messages)),
    "delimited": lambda messages: delimited(*messages),
    "of a collector": lambda messages: prefixed(*messages),
    "of a collector, zstd": lambda messages: prefixed(*map(zstd, messages)),
}


@pytest.mark.parametrize("name", [None, "otel"])
@pytest.mark.parametrize("form", FORMS)
def test_protobuf_says_what_json_says(form: str, name: str | None) -> None:
    written = FORMS[form]([request(text) for text in TWO_RANKS])
    read = decode(written, None, limits=LIMITS, format_name=name).trace
    expected = decode(b"\n".join(TWO_RANKS), None, limits=LIMITS).trace

    assert operations(read) == operations(expected)
    assert set(read.rank.tolist()) == {0, 1}
    assert read.meta == expected.meta


def test_json_of_a_collector_may_be_compressed_message_by_message() -> None:
    trace = decode(prefixed(*map(zstd, TWO_RANKS)), None, limits=LIMITS).trace
    assert set(trace.rank.tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda text: text[:-3], "trace.truncated"),
        (lambda text: text + b"\x0b", "trace.corrupt"),
        (lambda text: text.replace(b"node-017", b"node-\xff17"), "trace.corrupt"),
        (lambda text: text + b"\x0a\xff\xff\xff\x7f", "trace.item_too_long"),
    ],
    ids=["cut", "wire type", "text", "length"],
)
def test_damaged_protobuf_is_refused(damage: Callable[[bytes], bytes], code: str) -> None:
    with pytest.raises(InvalidTraceError) as caught:
        decode(damage(request(body(step()))), None, limits=LIMITS)
    assert caught.value.stable_code == code


def of_main(number: int = 7, at: int = 0) -> list[dict[str, Any]]:
    """Return the spans of a step with the names of Megatron-LM's main branch."""
    return [
        span("megatron.train.iteration", at, at + 900, iteration=number),
        span("megatron.train.iteration.forward_backward", at + 5, at + 700),
        span("megatron.p2p.recv_forward", at + 10, at + 20),
        span("megatron.microbatch.forward", at + 20, at + 120),
        span("megatron.microbatch.backward", at + 200, at + 450),
        span("megatron.train.iteration.optimizer", at + 800, at + 890),
    ]


def test_names_of_the_main_branch_are_read_as_those_before() -> None:
    decoded = decode(body([*of_main(7), *of_main(8, 1_000)]), None, limits=LIMITS)
    before = decode(body([*step(7), *step(8, 1_000)]), None, limits=LIMITS)

    def times(trace: Trace) -> list[tuple[str, int, int, int]]:
        names = [trace.op_names[code] for code in trace.op]
        return sorted(zip(names, trace.step, trace.start_ns, trace.duration_ns, strict=True))

    assert decoded.unmapped == ()
    assert times(decoded.trace) == times(before.trace)


@pytest.mark.parametrize("said", [{"iteration": 7}, {}], ids=["numbered", "by its time"])
def test_the_first_iteration_is_an_odd_step(said: dict[str, int]) -> None:
    first = span("megatron.train.first_iteration", -3, 905, **said)
    meta = decode(body([*of_main(7), *of_main(8, 1_000), first]), None, limits=LIMITS).trace.meta
    assert set(meta.odd_steps) == {7}
    assert parse_metadata(metadata_document(meta)) == meta


def test_what_ranks_do_between_steps_is_read_once() -> None:
    saving = [
        span("megatron.checkpoint.exposed_save", 910, 960),
        span("megatron.checkpoint.save", 915, 950),
        span("megatron.evaluate", 970, 990),
    ]
    trace = decode(body([*of_main(7), *saving, *of_main(8, 1_000)]), None, limits=LIMITS).trace
    found = operations(trace)
    assert found[7, "checkpoint", -1] == (EPOCH_NS + 910, 50)
    assert found[7, "evaluation", -1] == (EPOCH_NS + 970, 20)
    assert len(trace) == 10
