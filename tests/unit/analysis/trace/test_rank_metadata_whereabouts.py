"""Node, pod, GPU, local rank and launcher of ranks, by our names and OpenTelemetry's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.analysis.trace.metadata import (
    join_metadata,
    metadata_document,
    parse_metadata,
    with_names_of_body,
)
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.rank_metadata import Machine
from app.errors import InvalidMetadataError

SIZES = {"dp": 2, "pp": 2}
UUID = "GPU-5a3f1c2e-0000-4000-8000-00000000000b"
MIG = "MIG-5a3f1c2e-0000-4000-8000-00000000000c"


def meta(**said: Any) -> SessionMeta:  # noqa: ANN401 - as senders write it
    return parse_metadata({**SIZES, **said})


def refused(**said: Any) -> InvalidMetadataError:  # noqa: ANN401 - likewise
    with pytest.raises(InvalidMetadataError) as caught:
        meta(**said)
    return caught.value


def test_a_rank_has_node_pod_gpu_and_local_rank() -> None:
    found = meta(
        hosts={"0": "node-7", 1: "llama-1"},
        guessed_hosts={"llama-1": "hostname"},
        gpus={"0": 3},
        pods={"0": "ml/llama-0"},
        gpu_uuids={"0": UUID, "1": MIG},
        gpu_pci={"0": "00000000:3b:00.0"},
        local_ranks={"0": 3},
        launcher={"name": "slurm", "job": 4711, "restart": "1"},
    )
    assert found.machine(0) == Machine(
        "node-7", gpu="3", uuid=UUID, pci="00000000:3b:00.0", pod="ml/llama-0", local_rank=3
    )
    assert found.machine(1) == Machine("llama-1", guessed=True, uuid=MIG)
    assert found.machine(3) == Machine(None)
    assert found.whereabouts.launcher == {"name": "slurm", "job": "4711", "restart": "1"}
    assert parse_metadata(metadata_document(found)) == found


def test_what_old_recordings_say_is_stored_as_before() -> None:
    document = {**SIZES, "tp": 1, "cp": 1, "vpp": 1, "world": 4, "hosts": {"0": "node-7"}}
    assert metadata_document(parse_metadata(document)) == document
    assert meta(gpus={"0": UUID}).machine(0).uuid == UUID


def test_opentelemetrys_names_are_read_by_rank() -> None:
    found = meta(
        **{
            "k8s.node.name": {"0": "node-7"},
            "k8s.pod.name": {"0": "llama-0"},
            "k8s.namespace.name": {"0": "ml"},
            "hw.id": {"0": UUID},
            "slurm.job.id": 4711,
        }
    )
    assert found == meta(
        hosts={"0": "node-7"},
        pods={"0": "ml/llama-0"},
        gpu_uuids={"0": UUID},
        launcher={"name": "slurm", "job": "4711"},
    )


def test_opentelemetrys_names_said_once_are_those_of_the_ranks_of_the_body() -> None:
    said = meta(**{"k8s.node.name": "node-7", "k8s.pod.name": "llama-0", "hw.id": UUID})
    assert said.hosts == {}
    one = with_names_of_body(said, np.array([2, 2], np.int32))
    assert one.machine(2) == Machine("node-7", uuid=UUID, pod="llama-0")
    assert one.extra == {}
    several = with_names_of_body(said, np.array([3, 2], np.int32))
    assert several.hosts == {2: "node-7", 3: "node-7"}
    # Two ranks cannot have one GPU.
    assert several.whereabouts.gpu_uuids == {}


def test_the_name_of_a_node_replaces_a_guess_and_contradicts_another_name() -> None:
    guess: dict[str, Any] = {"hosts": {"0": "llama-0"}, "guessed_hosts": {"llama-0": "hostname"}}
    found = meta(**guess, **{"k8s.node.name": {"0": "node-7"}})
    assert found == meta(hosts={"0": "node-7"})
    error = refused(hosts={"0": "node-8"}, **{"k8s.node.name": {"0": "node-7"}})
    assert (error.stable_code, error.faults[0].column) == ("metadata.conflict", "k8s.node.name")
    assert "rank 0" in error.message


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("pods", {"4": "llama-4"}, "rank_out_of_range"),
        ("pods", ["llama-0"], "bad_value"),
        ("gpu_uuids", {"first": UUID}, "bad_value"),
        ("gpu_uuids", {"0": "x" * 256}, "bad_value"),
        ("gpu_pci", {"0": 1.5}, "bad_value"),
        ("local_ranks", {"0": "first"}, "bad_value"),
        ("local_ranks", {"0": -1}, "bad_value"),
        ("guessed_hosts", {"node\n7": "hostname"}, "bad_value"),
        ("launcher", {f"key-{n}": "x" for n in range(17)}, "bad_value"),
        ("launcher", "slurm", "bad_value"),
        ("hw.id", {"9": UUID}, "rank_out_of_range"),
        ("slurm.job.id", ["4711"], "bad_value"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(key: str, value: object, code: str) -> None:
    error = refused(**{key: value})
    assert error.stable_code == f"metadata.{code}"
    assert error.faults[0].column == key


def test_shares_of_a_session_add_up() -> None:
    one = meta(
        hosts={"0": "node-7"}, pods={"0": "ml/llama-0"}, gpu_uuids={"0": UUID},
        launcher={"name": "slurm", "job": "4711"},
    )  # fmt: skip
    two = meta(hosts={"1": "llama-1"}, guessed_hosts={"llama-1": "hostname"}, local_ranks={"1": 1})
    both = join_metadata(one, two)
    assert both == join_metadata(two, one)
    assert both.machine(0) == one.machine(0)
    assert both.machine(1) == Machine("llama-1", guessed=True, local_rank=1)
    with pytest.raises(InvalidMetadataError) as caught:
        join_metadata(one, meta(gpu_uuids={"0": MIG}))
    assert caught.value.faults[0].column == "gpu_uuids.0"


def test_what_is_known_replaces_a_guess_in_whatever_order_shares_come() -> None:
    guess = meta(hosts={"0": "llama-0", "1": "llama-0"}, guessed_hosts={"llama-0": "hostname"})
    known = meta(hosts={"0": "node-7"})
    both = join_metadata(guess, known)
    assert both == join_metadata(known, guess)
    assert [both.machine(rank) for rank in (0, 1)] == [
        Machine("node-7"),
        Machine("llama-0", guessed=True),
    ]
    assert join_metadata(meta(hosts={"1": "node-7"}), both).whereabouts.guessed_hosts == {}
