"""Specifications of whole jobs: accepted ones, and refusals that name a sufficient change."""

from __future__ import annotations

from typing import Any

import pytest

from app.analysis.planning.job.spec import FixedParallelism, JobSpec, Recompute
from app.analysis.planning.spec import Spec
from app.errors import InvalidSpecError
from app.plans.specs.spec import parse_any_spec
from tests.support.plans import small_job_spec, small_spec


def refused(**changes: Any) -> list[tuple[str | None, str, str]]:  # noqa: ANN401 - JSON
    with pytest.raises(InvalidSpecError) as caught:
        parse_any_spec(small_job_spec(**changes))
    return [(fault.column, fault.code, fault.message) for fault in caught.value.faults]


def test_global_batch_asks_for_the_whole_job() -> None:
    spec = parse_any_spec(small_job_spec())
    assert isinstance(spec, JobSpec)
    assert (spec.global_batch, spec.transformer.sequence, spec.gpus) == (64, 1024, 16)
    # Half of the vendor's figure, which is the sum of both directions.
    assert [device.link_gbytes_per_s for device in spec.devices] == [300.0, 450.0]
    assert spec.fixed == FixedParallelism()


def test_without_global_batch_a_specification_is_one_of_a_pipeline() -> None:
    assert isinstance(parse_any_spec(small_spec()), Spec)
    assert parse_any_spec(small_spec(pipelines=1)) == parse_any_spec(small_spec())
    with pytest.raises(InvalidSpecError) as caught:
        parse_any_spec(small_spec(pipelines=2))
    assert [fault.column for fault in caught.value.faults] == ["pipelines"]


def test_sizes_can_be_fixed() -> None:
    asked = {"tp": 2, "pp": 4, "dp": 2, "microbatch": 4, "recompute": "full", "interleave": 1}
    spec = parse_any_spec(small_job_spec(parallelism=asked))
    assert isinstance(spec, JobSpec)
    assert spec.fixed == FixedParallelism(2, 4, 2, 4, Recompute.FULL, 1)


ONE_TYPE = [{"type": "A100", "nodes": 4, "gpus_per_node": 8}]


@pytest.mark.parametrize(
    ("changes", "path", "would_do"),
    [
        ({"parallelism": {"microbatch": 3}}, "parallelism.microbatch", "2 would do"),
        (
            {"devices": ONE_TYPE, "parallelism": {"dp": 4}, "global_batch": 66},
            "global_batch",
            "68 would do",
        ),
        (
            {"devices": ONE_TYPE, "parallelism": {"dp": 3}},
            "parallelism.dp",
            "2 would do",
        ),
        (
            {"devices": ONE_TYPE, "parallelism": {"pp": 3}},
            "parallelism.pp",
            "2 would do",
        ),
        (
            {"devices": ONE_TYPE, "parallelism": {"interleave": 5}},
            "parallelism.interleave",
            "4 would do",
        ),
        ({"parallelism": {"dp": 16}, "global_batch": 12}, "global_batch", "16 would do"),
        ({"parallelism": {"dp": 65}}, "parallelism.dp", "16 would do"),
        ({"parallelism": {"tp": 16}}, "parallelism.tp", "8 would do"),
        ({"parallelism": {"tp": 3}}, "parallelism.tp", "2 would do"),
        ({"parallelism": {"pp": 13}}, "parallelism.pp", "12 would do"),
        (
            {"devices": ONE_TYPE, "parallelism": {"tp": 8, "pp": 2, "dp": 4}},
            "parallelism.dp",
            "dp 2 would do",
        ),
        ({"parallelism": {"interleave": 2}}, "parallelism.interleave", "1 would do"),
        (
            {"devices": ONE_TYPE, "parallelism": {"pp": 2, "interleave": 4}},
            "parallelism.interleave",
            "3 would do",
        ),
        (
            {
                "devices": [
                    {"type": "A100", "nodes": 1, "gpus_per_node": 8},
                    {"type": "H100", "nodes": 1, "gpus_per_node": 4},
                ]
            },
            "devices[1].gpus_per_node",
            "8 would do",
        ),
    ],
)
def test_contradictions_name_the_smallest_change(
    changes: dict[str, Any], path: str, would_do: str
) -> None:
    [(column, code, message)] = refused(**changes)
    assert (column, code) == (path, "conflict")
    assert would_do in message


def test_every_fault_has_its_path() -> None:
    assert {(path, code) for path, code, _ in refused(global_batch=0, unknown=1)} == {
        ("global_batch", "out_of_range"),
        ("unknown", "unknown_key"),
    }
    assert [(path, code) for path, code, _ in refused(sequence=512)] == [("sequence", "conflict")]
    timed = [{"type": "new", "nodes": 1, "gpus_per_node": 8, "forward_ms": [1.0] * 14}]
    assert [(path, code) for path, code, _ in refused(devices=timed)] == [
        ("devices[0]", "conflict")
    ]
    unknown = [{"type": "new", "nodes": 1, "gpus_per_node": 8}]
    assert [(path, code) for path, code, _ in refused(devices=unknown)] == [
        ("devices[0].type", "unknown_type")
    ]
    assert [path for path, _, _ in refused(global_batch=10**6)] == ["global_batch"]
    layers = {"layers": [{"forward_ms": 1}]}
    assert [(path, code) for path, code, _ in refused(model=layers)] == [("model", "conflict")]
