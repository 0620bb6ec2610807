"""A job's own ranges, mapped to operation types by labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.model import SessionMeta, Sizes
from app.errors import InvalidLabelsError, InvalidTraceError
from app.sessions.recordings.labels import read_labels
from tests.unit.analysis.trace.bodies import LIMITS, ndjson
from tests.unit.analysis.trace.recordings import test_nsys, test_otlp
from tests.unit.analysis.trace.recordings.kineto_files import KinetoFile, operations

if TYPE_CHECKING:
    from pathlib import Path

    from app.analysis.trace.formats.kind import Decoded

MS = 1_000_000
ONE = SessionMeta(Sizes(dp=4, pp=1))
# The labels of DeepSeek's published profiles, and the microbatch.
LAYERS = r"""
'(attn|mlp)\(F\) mb(?P<mb>\d+)': forward-compute
'(attn|mlp)\(B\) mb(?P<mb>\d+)': backward-compute
'(dispatch|combine)\([FB]\).*': ep-all-to-all
"""


def layered(*, microbatches: bool = True) -> KinetoFile:
    """Return a file of two microbatches through two layers in each of two steps."""
    file = KinetoFile(groups={"default_pg": [0, 1, 2, 3]})
    for step in range(2):
        begin = 4_459_370_929_637_969 + step * 100 * MS
        file.add(f"ProfilerStep#{step + 10}", begin, 99 * MS)
        at = begin
        for direction in ("F", "B"):
            for mb in range(2):
                said = f" mb{mb}" if microbatches else ""
                for part in ("attn", "dispatch", "mlp", "combine") * 2:
                    file.add(f"{part}({direction}){said}", at, MS)
                    at += 2 * MS
        file.add("Optimizer.step#AdamW.step", begin + 90 * MS, MS)
    return file


def read(file: KinetoFile, labels: str, meta: SessionMeta | None = ONE) -> Decoded:
    return decode(file.body(), meta, limits=LIMITS, own=read_labels(labels))


def test_layers_of_one_microbatch_are_one_computation() -> None:
    decoded = read(layered(), LAYERS)
    found = operations(decoded.trace)

    assert {mb: found[10, "forward-compute", mb][1] for mb in (0, 1)} == {0: 13 * MS, 1: 13 * MS}
    assert found[11, "backward-compute", 1][1] == 13 * MS
    names = [decoded.trace.op_names[code] for code in decoded.trace.op]
    assert {name: names.count(name) for name in names} == {
        "forward-compute": 4,
        "backward-compute": 4,
        "ep-all-to-all": 32,
        "optimizer": 2,
    }
    assert decoded.unmapped == ()


def test_layers_that_name_no_microbatch_are_one_until_something_else_is_computed() -> None:
    labels = LAYERS.replace(r" mb(?P<mb>\d+)", "")
    decoded = read(layered(microbatches=False), labels)
    names = [decoded.trace.op_names[code] for code in decoded.trace.op]
    assert (names.count("forward-compute"), names.count("backward-compute")) == (2, 2)


def test_a_forward_that_is_computed_again_is_part_of_its_backward() -> None:
    file = KinetoFile(groups={"default_pg": [0, 1, 2, 3]})
    file.add("ProfilerStep#10", 0, 99 * MS)
    for name, at in (
        ("attn(F) mb0", 1),
        ("mlp(B) mb0", 10),
        ("attn(F) mb0", 12),
        ("attn(B) mb0", 14),
    ):
        file.add(name, at * MS, MS)
    found = operations(read(file, LAYERS.replace("'(dispatch", "'x|(dispatch")).trace)
    assert found[10, "forward-compute", 0][1] == MS
    assert found[10, "backward-compute", 0][1] == 5 * MS


def test_kernels_of_all_layers_say_when_a_computation_was_done() -> None:
    file = layered()
    first = 4_459_370_929_637_969
    for number, (launched, ran) in enumerate(((0, 30), (6, 35), (8, 40))):
        file.add(
            "cudaLaunchKernel", first + launched * MS + 7, 5, cat="cuda_runtime", correlation=number
        )
        file.add("gemm", first + ran * MS, 2 * MS, cat="kernel", correlation=number)
    decoded = read(file, LAYERS)
    found = operations(decoded.trace)
    # Kernels of attn(F), combine(F) and attn(F) of microbatch 0.
    assert found[10, "forward-compute", 0][1] == 12 * MS
    assert [one.what for one in decoded.unmapped] == [
        "labelled ranges without a kernel",
        "computations without a kernel",
    ]


def test_ranges_on_the_track_of_the_device_are_read_where_there_are_no_others() -> None:
    file = layered()
    file.events = [
        event.replace('"user_annotation"', '"gpu_user_annotation"') if "mb" in event else event
        for event in file.events
    ]
    expected = operations(read(layered(), LAYERS).trace)
    assert operations(read(file, LAYERS).trace) == expected


def test_steps_and_stages_are_what_labels_say() -> None:
    labels = r"""
    'it (?P<step>\d+)': step
    'S(?P<stage>\d) F(?P<mb>\d)': fwd
    'S(?P<stage>\d) B(?P<mb>\d)': bwd
    """
    file = KinetoFile(rank=1, world=2, groups={"default_pg": [0, 1]})
    for step in range(3):
        at = step * 100 * MS
        file.add(f"it {500 + step}", at, 90 * MS)
        for mb in range(2):
            file.add(f"S1 F{mb}", at + (10 * mb + 1) * MS, 5 * MS)
            file.add(f"S1 B{mb}", at + (10 * mb + 41) * MS, 7 * MS)
    trace = read(file, labels, None).trace
    assert trace.meta.sizes == Sizes(dp=1, pp=2)
    assert set(trace.step.tolist()) == {500, 501, 502}
    assert set(trace.pp.tolist()) == {1}


def test_steps_without_a_number_are_counted() -> None:
    file = KinetoFile(groups={"default_pg": [0, 1, 2, 3]})
    for step in range(3):
        file.add("train step", step * 100 * MS, 90 * MS)
        file.add("attn(F) mb0", step * 100 * MS + 1, MS)
    trace = read(file, LAYERS + "'train step': step\n").trace
    assert trace.step.tolist() == [0, 1, 2]


def test_a_pattern_that_matches_nothing_is_reported() -> None:
    decoded = read(layered(), LAYERS + "'head(F)': forward-compute\n")
    (one,) = decoded.unmapped
    assert one.what == "files without a range that matches the label 'head(F)' (line 5)"
    assert one.remedy == "correct the pattern, or record such a range"


def test_labels_of_which_none_matches_are_refused_with_the_ranges_that_there_are() -> None:
    with pytest.raises(InvalidTraceError, match=r"'attn\(F\) mb0' \(4 times\)") as caught:
        read(layered(), "'attention': forward-compute")
    assert caught.value.stable_code == "trace.no_labels"


def test_a_group_that_captures_no_number_is_refused_with_its_event() -> None:
    with pytest.raises(InvalidTraceError, match=r"captures 'attn' of event 1 as mb") as caught:
        read(layered(), r"'(?P<mb>\w+)\(F\).*': forward-compute")
    assert caught.value.stable_code == "trace.bad_label"
    assert caught.value.faults[0].row == 1


def test_formats_without_ranges_take_no_labels() -> None:
    with pytest.raises(InvalidLabelsError, match="Kineto") as caught:
        decode(ndjson(), None, limits=LIMITS, own=read_labels(LAYERS))
    assert caught.value.stable_code == "labels.no_ranges"


@pytest.mark.parametrize("name", ["\ud800", "x" * 5000, "", "attn(F) mb٣"])
def test_odd_names_match_nothing(name: str) -> None:
    file = layered()
    file.add(name, 4_459_370_929_637_969, 5)
    assert len(read(file, LAYERS).trace) == len(read(layered(), LAYERS).trace)


def test_an_expression_that_others_never_finish_takes_no_time() -> None:
    file = layered()
    file.add("a" * 4000 + "!", 4_459_370_929_637_969, 5)
    decoded = read(file, LAYERS + "'(a+)+': gc\n'(a|aa)+$': gc\n'(.*a){20}': gc\n")
    assert len(decoded.unmapped) == 3


def test_spans_of_opentelemetry_take_labels() -> None:
    labels = r"""
    'train (?P<step>\d+)': step
    '(embed|block\d) forward (?P<mb>\d+)': forward-compute
    '(head|block\d) backward (?P<mb>\d+)': backward-compute
    'sync': grads-reduce-scatter
    """
    spans = [
        test_otlp.span("train 7", 0, 1000),
        test_otlp.span("embed forward 0", 10, 100),
        test_otlp.span("block1 forward 0", 110, 300),
        test_otlp.span("head backward 0", 310, 400),
        test_otlp.span("block1 backward 0", 410, 600),
        test_otlp.span("sync", 610, 700),
        test_otlp.span("GET /", 1, 2),
    ]
    decoded = decode(test_otlp.body(spans), None, limits=LIMITS, own=read_labels(labels))
    epoch = test_otlp.EPOCH_NS
    assert operations(decoded.trace) == {
        (7, "forward-compute", 0): (epoch + 10, 290),
        (7, "backward-compute", 0): (epoch + 310, 290),
        (7, "grads-reduce-scatter", -1): (epoch + 610, 90),
    }
    assert [one.what for one in decoded.unmapped] == ["spans of other programs"]


def test_spans_outside_of_labelled_steps_are_said() -> None:
    labels = "'block forward': fwd"
    spans = [test_otlp.span("block forward", 9_000, 9_005), *test_otlp.step()]
    decoded = decode(test_otlp.body(spans), None, limits=LIMITS, own=read_labels(labels))
    assert [one.remedy for one in decoded.unmapped] == [
        "label the spans of steps, or capture the step in their names"
    ]


def test_labelled_steps_of_spans_without_a_number_are_counted() -> None:
    labels = "train: step\nblock: fwd\n"
    spans = [
        test_otlp.span(name, 100 * step + at, 100 * step + end)
        for step in range(2)
        for name, at, end in (("train", 0, 90), ("block", 10, 20), ("block", 30, 40))
    ]
    trace = decode(test_otlp.body(spans), None, limits=LIMITS, own=read_labels(labels)).trace
    assert sorted(zip(trace.step.tolist(), trace.duration_ns.tolist(), strict=True)) == [
        (0, 30),
        (1, 30),
    ]


def test_nvtx_ranges_take_labels(tmp_path: Path) -> None:
    layers = [
        ("ProfilerStep#7", 0, 900),
        ("attn(F) mb0", 10, 20),
        ("mlp(F) mb0", 30, 40),
        ("attn(B) mb0", 50, 60),
        ("GET /", 61, 62),
    ]
    kernels = [("gemm", 11, 100, 150), ("gemm", 31, 160, 200), ("gemm", 51, 210, 300)]
    path = test_nsys.database(tmp_path / "rank1.sqlite", layers, kernels)
    own = read_labels(LAYERS)
    decoded = decode(path, test_nsys.META, limits=LIMITS, local=True, own=own)
    assert operations(decoded.trace) == {
        (7, "forward-compute", 0): (test_nsys.UTC_NS + 100, 100),
        (7, "backward-compute", 0): (test_nsys.UTC_NS + 210, 90),
    }
    with pytest.raises(InvalidTraceError, match=r"'GET /' \(1 times\)"):
        decode(path, test_nsys.META, limits=LIMITS, local=True, own=read_labels("x: fwd"))


def test_layers_that_repeat_are_of_one_step_where_nothing_says_steps() -> None:
    # Like DeepSeek's published profiles: one rank, without steps and process groups.
    file = KinetoFile(fields={"distributedInfo": None})
    for place, name in enumerate(("attn(F)", "dispatch(B)", "mlp(B)", "mlp(F)", "attn(B)") * 3):
        file.add(name, 2 * place * MS, MS)
    labels = LAYERS.replace(r" mb(?P<mb>\d+)", "")
    with pytest.raises(InvalidTraceError) as caught:
        read(file, labels, None)
    assert caught.value.stable_code == "trace.unknown_rank"
    # In a job of one rank, the file is of that rank.
    trace = read(file, labels, SessionMeta(Sizes(dp=1, pp=1))).trace
    assert set(trace.step.tolist()) == {0}
    assert set(trace.rank.tolist()) == {0}
    names = [trace.op_names[code] for code in trace.op]
    assert {name: names.count(name) for name in names} == {
        "forward-compute": 6,
        "backward-compute": 6,
        "ep-all-to-all": 3,
    }
