"""Actions in Debian's Slurm: a blamed node is drained, and resumed after the repair."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from app.actions.kinds.kind import AttemptTools, Order
from app.actions.kinds.slurm import SlurmConfig as Config
from app.actions.kinds.slurm import act, release
from app.actions.models import ActionMode
from app.actions.orders import put_back
from app.actions.policies import set_policy
from app.errors import InvalidActionError
from app.hosts.repairs import note_repair
from app.platform.outbound import AddressGuard, DeliveryError, Outbound
from tests.conftest import skip_or_fail
from tests.support import slurm
from tests.support.acting import Acting
from tests.support.project import build
from tests.support.slurm import Slurm

if TYPE_CHECKING:
    from collections.abc import Iterator

ORDER = Order(
    id=uuid.UUID(int=7),
    at=datetime(2026, 11, 27, tzinfo=UTC),
    node="node-1",
    gpus=("GPU-1",),
    cause="slow_worker",
    cause_title="Slow worker",
    confidence=0.97,
    sessions=2,
    lost_each_hour=1.0,
    job="llm",
    incident=uuid.UUID(int=8),
    evidence_url="https://paceline.example/incidents/8/evidence",
    source_url="https://paceline.example/",
    confirmed=True,
)


@pytest.fixture(scope="module")
def running() -> Iterator[Slurm]:
    if not slurm.is_there():
        skip_or_fail(slurm.MISSING)
    with Slurm() as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Slurm, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Return the cluster without drained nodes, after setting the server's environment."""
    monkeypatch.setenv("SLURM_CONF", str(running.conf))
    for node in slurm.NODES:
        if running.is_drained(node):
            running.scontrol("update", f"nodename={node}", "state=resume")
    assert not any(running.is_drained(node) for node in slurm.NODES)
    return running


@pytest.fixture
def slurming(acting: Acting, cluster: Slurm) -> Iterator[Acting]:
    """Return an installation whose operator allows Slurm actions."""
    del cluster
    container = build(
        acting.container.settings.model_copy(update={"slurm_scontrol": Path(_scontrol())})
    )
    yield Acting(container)
    container.close()


@pytest.fixture
def means() -> Iterator[AttemptTools]:
    with Outbound(AddressGuard(), 15.0) as outbound:
        yield AttemptTools(outbound, _scontrol())


def _scontrol() -> str:
    found = shutil.which("scontrol", path=slurm.PATH)
    assert found is not None
    return found


def test_a_blamed_node_is_drained_with_the_reason_and_resumed_after_the_repair(
    slurming: Acting, cluster: Slurm
) -> None:
    set_policy(slurming.container, "slurm", mode=ActionMode.AUTOMATIC)
    for node in slurm.NODES:
        slurming.blame(node, job=f"job-on-{node}")
    slurming.work()
    # Both nodes are blamed, but a limit allows only one to be out.
    assert [cluster.is_drained(node) for node in slurm.NODES] == [True, False]
    action = slurming.action_of("node-1")
    assert str(action.state) == "done"
    reason = cluster.reason("node-1")
    assert reason.startswith(f"Paceline {action.id}: Slow worker, https://paceline.example/")
    assert action.command.startswith("scontrol update nodename=node-1 state=drain 'reason=Paceline")
    slurming.time_passes(timedelta(hours=2))
    with slurming.container.uow() as tx:
        repaired = tx.now - timedelta(hours=1)
    note_repair(slurming.container, "node-1", what="replaced GPU 3", at=repaired)
    slurming.well("node-1", job="job-on-node-1")
    slurming.look()
    assert str(slurming.action_of("node-1").state) == "releasing"
    slurming.work()
    assert str(slurming.action_of("node-1").state) == "released"
    assert not cluster.is_drained("node-1")


def test_a_dry_run_shows_the_command_and_touches_nothing(slurming: Acting, cluster: Slurm) -> None:
    set_policy(slurming.container, "slurm")
    slurming.blame("node-1")
    slurming.work()
    assert str(slurming.action().state) == "dry_run"
    assert slurming.action().command.startswith("scontrol update nodename=node-1 state=drain")
    assert not cluster.is_drained("node-1")


def test_a_node_of_another_cluster_fails_with_a_code(slurming: Acting, cluster: Slurm) -> None:
    set_policy(slurming.container, "slurm", mode=ActionMode.AUTOMATIC)
    slurming.blame("node-77")
    slurming.work()
    action = slurming.action()
    assert (str(action.state), action.error_code) == ("failed", "slurm.unknown_node")
    assert not any(cluster.is_drained(node) for node in slurm.NODES)


def test_a_node_that_a_person_resumed_is_not_drained_again(
    slurming: Acting, cluster: Slurm
) -> None:
    set_policy(slurming.container, "slurm", mode=ActionMode.AUTOMATIC)
    slurming.blame("node-1")
    slurming.work()
    cluster.scontrol("update", "nodename=node-1", "state=resume")
    slurming.blame("node-1", job="other")
    slurming.work()
    assert not cluster.is_drained("node-1")


def test_a_node_that_others_drained_is_left_alone(slurming: Acting, cluster: Slurm) -> None:
    set_policy(slurming.container, "slurm", mode=ActionMode.AUTOMATIC)
    cluster.scontrol("update", "nodename=node-1", "state=drain", "reason=bad disk")
    slurming.blame("node-1")
    slurming.work()
    assert str(slurming.action().state) == "done"
    assert cluster.reason("node-1").startswith("bad disk")
    put_back(slurming.container, slurming.action().id)
    slurming.work()
    assert cluster.is_drained("node-1")
    assert "another reason: bad disk" in str(slurming.action().answer)


@pytest.mark.parametrize(
    "node",
    [
        "ALL",
        "all",
        "node-[1-2]",
        "node-1,node-2",
        "node-1 node-2",
        "node-1 state=down",
        "node-1; scontrol shutdown",
        "$(scontrol shutdown)",
        "`id`",
        "--help",
        "n" * 300,
        "nöde-1",
        "節点",
        "",
        "node-1\n",
    ],
)
def test_names_that_are_no_single_node_s_never_reach_scontrol(
    cluster: Slurm, tmp_path: Path, node: str
) -> None:
    called = tmp_path / "called"
    spy = tmp_path / "scontrol"
    spy.write_text(f'#!/bin/sh\ntouch {called}\nexec {_scontrol()} "$@"\n')
    spy.chmod(0o755)
    with Outbound(AddressGuard(), 15.0) as outbound:
        for do in (act, release):
            with pytest.raises(DeliveryError) as refused:
                do(Config(), replace(ORDER, node=node), AttemptTools(outbound, str(spy)))
            assert (refused.value.code, refused.value.permanent) == ("action.not_one_node", True)
    assert not called.exists()
    assert not any(cluster.is_drained(one) for one in slurm.NODES)


def test_the_same_order_twice_comes_to_the_same(cluster: Slurm, means: AttemptTools) -> None:
    act(Config(), ORDER, means)
    reason = cluster.reason("node-1")
    assert act(Config(), ORDER, means).text.startswith("drained already")
    assert cluster.reason("node-1") == reason
    release(Config(), ORDER, means)
    assert release(Config(), ORDER, means).text == "resumed already"
    assert not cluster.is_drained("node-1")


def test_words_of_an_order_are_words_to_slurm(cluster: Slurm, means: AttemptTools) -> None:
    wild = replace(ORDER, cause_title="x' state=down; $(reboot)\nnodename=node-2 \x00")
    act(Config(), wild, means)
    assert [cluster.is_drained(node) for node in slurm.NODES] == [True, False]
    assert "$(reboot)" in cluster.reason("node-1")


def test_without_the_operator_s_word_no_policy_names_slurm(acting: Acting) -> None:
    with pytest.raises(InvalidActionError, match="PACELINE_SLURM_SCONTROL"):
        set_policy(acting.container, "slurm", mode=ActionMode.AUTOMATIC)
