"""Commands that take a machine out, for causes that blame machines and for single nodes."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from uuid import UUID

import pytest

from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.diagnosis.finding import UNKNOWN
from app.incidents.held_machines import cordon_commands, node_of
from app.incidents.lifecycle import Incident
from app.incidents.models.tables import IncidentState

INCIDENT = Incident(
    id=UUID(int=1),
    fingerprint="f",
    cause="slow_worker",
    where="node-7",
    state=IncidentState.FIRING,
    severity="warning",
    rules=(),
    opened_at=datetime(2026, 1, 1, tzinfo=UTC),
)


@pytest.mark.parametrize("cause", [*KINDS, UNKNOWN, "of_a_later_version"])
def test_only_causes_that_a_machine_can_have_name_a_node_to_cordon(cause: str) -> None:
    kind = KINDS.get(cause)
    node = node_of(dataclasses.replace(INCIDENT, cause=cause))
    assert bool(cordon_commands(node, "why")) == (kind is not None and kind.blames_machine)


@pytest.mark.parametrize(
    "cause",
    [
        "expert_parallel_imbalance",
        "memory_fragmentation",
        "stage_imbalance",
        "sequence_length_imbalance",
        "garbage_collection",
    ],
)
def test_what_is_the_job_s_own_is_at_fault_on_no_machine(cause: str) -> None:
    assert not KINDS[cause].blames_machine
    assert node_of(dataclasses.replace(INCIDENT, cause=cause)) == ""


@pytest.mark.parametrize(
    "name",
    [
        "",
        "node-[1-99]",
        "a,b",
        "-all",
        "x; rm -rf /",
        "$(reboot)",
        "`id`",
        "a b",
        "a\nb",
        "a\x00b",
        "../node",
        "n" * 254,
        "n" * 300,
        "é" * 150,
        "nöde-7",
        "node-7\u200b",
        "node-7\n",
        "ALL,node",
        "ALL",
        "all",
    ],
)
def test_no_command_for_more_than_one_node(name: str) -> None:
    assert cordon_commands(name, "why") == []
