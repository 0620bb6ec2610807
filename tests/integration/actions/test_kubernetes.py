"""Actions in Kubernetes, on a server with its API: taint, condition and event, and release."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

import pytest

from app.actions.kinds.kind import AttemptTools, Order, Placement
from app.actions.kinds.kubernetes import (
    CORDONED_BY,
    KubernetesConfig,
    act,
    placements,
    release,
)
from app.actions.models import ActionMode
from app.actions.orders import put_back
from app.actions.policies import get_policy, set_policy
from app.errors import InvalidActionError
from app.platform.outbound import AddressGuard, DeliveryError, Outbound
from tests.support.kubernetes import TOKEN, Kubernetes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.acting import Acting

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
OURS = {"key": "paceline.dev/straggler", "value": ORDER.id.hex, "effect": "NoSchedule"}
OTHER = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


@pytest.fixture
def cluster() -> Iterator[Kubernetes]:
    with Kubernetes("node-1", "node-2") as running:
        yield running


@pytest.fixture
def means() -> Iterator[AttemptTools]:
    with Outbound(AddressGuard((ip_network("127.0.0.0/8"),)), 15.0) as outbound:
        yield AttemptTools(outbound)


def _config(cluster: Kubernetes, *, cordon: bool = False) -> KubernetesConfig:
    return KubernetesConfig(cluster.url, TOKEN, cordon=cordon)


def test_a_blamed_node_is_tainted_and_the_taint_is_removed_later(
    acting: Acting, cluster: Kubernetes
) -> None:
    automatic(acting, cluster)
    pods = {node: cluster.run("ml", f"pod-on-{node}", node) for node in cluster.nodes}
    acting.work()
    for node, pod in pods.items():
        acting.blame(node, job=f"job-on-{node}", launched_as=pod, scheduled=False)
    acting.work()
    action = acting.action_of("node-1")
    assert str(action.state) == "done"
    [taint] = cluster.taints("node-1")
    assert taint == {**OURS, "value": action.id.hex}
    assert cluster.taints("node-2") == []
    assert cluster.condition("node-1") == "True"
    [event] = cluster.events
    assert event["involvedObject"]["name"] == "node-1"
    assert "https://paceline.example/" in event["message"]
    assert not cluster.nodes["node-1"]["spec"].get("unschedulable")
    with acting.container.reading() as tx:
        assert TOKEN not in repr(get_policy(tx, "kubernetes"))
    put_back(acting.container, action.id)
    acting.work()
    assert (cluster.taints("node-1"), cluster.condition("node-1")) == ([], "False")


def automatic(acting: Acting, cluster: Kubernetes, *namespaces: str) -> None:
    config = {"server": cluster.url, "token": TOKEN, "namespaces": namespaces or ("ml",)}
    set_policy(acting.container, "kubernetes", mode=ActionMode.AUTOMATIC, config=config)


def test_pods_are_read_in_pages(cluster: Kubernetes, means: AttemptTools) -> None:
    cluster.page = 2
    for number in range(5):
        cluster.run("ml", f"pod-{number}", "node-1")
    cluster.run("ml", "waits", "node-2", phase="Pending")
    cluster.run("other", "pod", "node-2")
    cluster.run("dev", "gone", "node-99")
    config = replace(_config(cluster), namespaces=("ml", "dev"))
    assert placements(config, means) == [
        Placement("node-1", "uid-node-1", f"kubernetes/ml/pod-{number}") for number in range(5)
    ]
    with pytest.raises(DeliveryError) as refused:
        placements(_config(cluster), means)
    assert refused.value.code == "kubernetes.no_namespaces"
    cluster.denied = True
    with pytest.raises(DeliveryError) as denied:
        placements(config, means)
    assert denied.value.code == "kubernetes.denied"


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"metadata": {"name": "p"}, "spec": None},
        {"metadata": {"name": "p\x00"}, "spec": {"nodeName": "node-1"}},
        {"metadata": {"name": 3}, "spec": {"nodeName": "node-1"}},
        {"metadata": {"name": "p"}, "spec": {"nodeName": ["node-1"]}},
    ],
)
def test_a_list_of_pods_that_is_none_has_a_code(
    cluster: Kubernetes, means: AttemptTools, pod: dict[str, Any]
) -> None:
    cluster.pods["ml", "p"] = pod | {"status": {"phase": "Running"}}
    with pytest.raises(DeliveryError) as refused:
        placements(replace(_config(cluster), namespaces=("ml",)), means)
    assert refused.value.code == "kubernetes.answer"


def test_forged_hosts_taint_no_node(acting: Acting, cluster: Kubernetes) -> None:
    automatic(acting, cluster)
    cluster.run("ml", "mine", "node-1")
    foreign = cluster.run("theirs", "pod", "node-2")
    acting.work()
    # Of another namespace: the scheduler ran none of the project's pods there.
    acting.blame("node-2", job="a", launched_as=foreign, scheduled=False, sessions=4)
    # A node of the project, with a pod that runs elsewhere, or with none.
    acting.blame("node-1", job="b", launched_as=foreign, scheduled=False, sessions=4)
    acting.blame("node-1", job="c", launched_as=None, scheduled=False, sessions=4)
    acting.work()
    assert (cluster.taints("node-1"), cluster.taints("node-2")) == ([], [])
    assert "action.unknown_node" in acting.action_of("node-2").limits
    assert acting.action_of("node-1").limits == ["action.unconfirmed_job"]
    assert [path for method, path in cluster.asked if method != "GET"] == []


def test_done_twice_it_comes_to_the_same(cluster: Kubernetes, means: AttemptTools) -> None:
    for _ in range(2):
        act(_config(cluster, cordon=True), ORDER, means)
    assert cluster.taints("node-1") == [OURS]
    assert len(cluster.events) == 1
    for _ in range(2):
        release(_config(cluster), ORDER, means)
    assert cluster.taints("node-1") == []


def test_a_node_is_cordoned_where_asked_and_only_ours_is_taken_back(
    cluster: Kubernetes, means: AttemptTools
) -> None:
    cluster.change("node-2", {"unschedulable": True})
    for node in ("node-1", "node-2"):
        act(_config(cluster, cordon=True), replace(ORDER, node=node), means)
        assert cluster.nodes[node]["spec"]["unschedulable"]
    assert CORDONED_BY in cluster.nodes["node-1"]["metadata"]["annotations"]
    for node in ("node-1", "node-2"):
        release(_config(cluster, cordon=True), replace(ORDER, node=node), means)
    assert "unschedulable" not in cluster.nodes["node-1"]["spec"]
    # A person had cordoned the node before, so it stays cordoned.
    assert cluster.nodes["node-2"]["spec"]["unschedulable"]


def test_taints_of_others_stay_even_if_the_node_changes_meanwhile(
    cluster: Kubernetes, means: AttemptTools
) -> None:
    cluster.change("node-1", {"taints": [OTHER]})
    cluster.changes = 3
    act(_config(cluster), ORDER, means)
    assert cluster.taints("node-1") == [OTHER, OURS]
    cluster.changes = 3
    release(_config(cluster), ORDER, means)
    assert cluster.taints("node-1") == [OTHER]
    cluster.changes = 99
    with pytest.raises(DeliveryError) as refused:
        act(_config(cluster), ORDER, means)
    assert (refused.value.code, refused.value.permanent) == ("kubernetes.busy", False)


def test_a_taint_of_another_action_is_left_alone(cluster: Kubernetes, means: AttemptTools) -> None:
    act(_config(cluster), ORDER, means)
    other = replace(ORDER, id=uuid.UUID(int=9))
    with pytest.raises(DeliveryError) as refused:
        act(_config(cluster), other, means)
    assert refused.value.code == "kubernetes.tainted"
    release(_config(cluster), other, means)
    assert cluster.taints("node-1") == [OURS]


def test_nodes_of_another_cluster_and_rights_that_are_missing_have_codes(
    cluster: Kubernetes, means: AttemptTools
) -> None:
    with pytest.raises(DeliveryError) as refused:
        act(_config(cluster), replace(ORDER, node="node-77"), means)
    assert (refused.value.code, refused.value.permanent) == ("kubernetes.unknown_node", True)
    cluster.denied = True
    with pytest.raises(DeliveryError) as refused:
        act(_config(cluster), ORDER, means)
    assert (refused.value.code, refused.value.permanent) == ("kubernetes.denied", True)


@pytest.mark.parametrize(
    "node", ["", "..", "node-1/status", "node-1?x=1", "n" * 300, "nöde-1", "a b", "ALL", "%2e"]
)
def test_names_that_are_no_single_node_s_are_never_asked_for(
    cluster: Kubernetes, means: AttemptTools, node: str
) -> None:
    for do in (act, release):
        with pytest.raises(DeliveryError) as refused:
            do(_config(cluster), replace(ORDER, node=node), means)
        assert refused.value.code == "action.not_one_node"
    assert cluster.asked == []


@pytest.mark.parametrize(
    "change",
    [
        {"server": "http://kubernetes.example.com"},
        {"ca_certificate": "no certificate"},
        {"token": None},
        {"server": "https://169.254.169.254"},
    ],
)
def test_configurations_that_cannot_be_used_are_refused(
    acting: Acting, change: dict[str, str | None]
) -> None:
    config = {"server": "https://kubernetes.example.com", "token": TOKEN} | change
    with pytest.raises(InvalidActionError):
        set_policy(acting.container, "kubernetes", config=config)
