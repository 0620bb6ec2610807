"""Actions in Debian's Slurm: a blamed node is drained, and resumed after the repair."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from app.actions.kinds.kind import AttemptTools, Order, Placement
from app.actions.kinds.slurm import SlurmConfig as Config
from app.actions.kinds.slurm import act, node_names, placements, release
from app.actions.models import ActionMode
from app.actions.orders import allow, put_back
from app.actions.policies import set_policy
from app.errors import ConflictError, InvalidActionError
from app.hosts.repairs import note_repair
from app.platform.outbound import AddressGuard, DeliveryError, Outbound
from tests.support import slurm
from tests.support.acting import Acting
from tests.support.slurm import Slurm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ACCOUNT = "research"
CONFIG = {"accounts": [ACCOUNT]}
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


@pytest.fixture
def means() -> Iterator[AttemptTools]:
    with Outbound(AddressGuard(), 15.0) as outbound:
        yield AttemptTools(outbound, slurm.scontrol())


def run_and_blame(slurming: Acting, cluster: Slurm, *nodes: str) -> dict[str, str]:
    """Run a job on each node that sessions then blame; return the jobs as sessions name them."""
    jobs = {}
    for node in nodes:
        jobs[node] = f"slurm/{cluster.submit(node, account=ACCOUNT)}"
    slurming.work()
    for node, job in jobs.items():
        slurming.blame(node, job=f"job-on-{node}", launched_as=job, scheduled=False)
    return jobs


def test_a_blamed_node_is_drained_with_the_reason_and_resumed_after_the_repair(
    slurming: Acting, cluster: Slurm
) -> None:
    set_policy(slurming.container, "slurm", mode=ActionMode.AUTOMATIC, config=CONFIG)
    jobs = run_and_blame(slurming, cluster, *slurm.NODES)
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
    # The job runs on, and its sessions after the repair are the proof.
    slurming.well("node-1", job="job-on-node-1", launched_as=jobs["node-1"])
    slurming.look()
    assert str(slurming.action_of("node-1").state) == "releasing"
    slurming.work()
    assert str(slurming.action_of("node-1").state) == "released"
    assert not cluster.is_drained("node-1")


def test_a_dry_run_shows_the_command_and_touches_nothing(slurming: Acting, cluster: Slurm) -> None:
    set_policy(slurming.container, "slurm", config=CONFIG)
    run_and_blame(slurming, cluster, "node-1")
    slurming.work()
    assert (str(slurming.action().state), slurming.action().limits) == ("dry_run", [])
    assert slurming.action().command.startswith("scontrol update nodename=node-1 state=drain")
    assert not cluster.is_drained("node-1")


def test_a_node_that_slurm_does_not_know_is_held(slurming: Acting, cluster: Slurm) -> None:
    set_policy(slurming.container, "slurm", mode=ActionMode.AUTOMATIC, config=CONFIG)
    slurming.blame("node-77", scheduled=False)
    slurming.work()
    action = slurming.action()
    assert (str(action.state), action.limits) == (
        "held",
        ["action.unknown_node", "action.unconfirmed_job"],
    )
    with pytest.raises(ConflictError) as refused:
        allow(slurming.container, action.id)
    assert refused.value.stable_code == "action.unknown_node"
    assert not any(cluster.is_drained(node) for node in slurm.NODES)


def test_a_node_that_a_person_resumed_is_not_drained_again(
    slurming: Acting, cluster: Slurm
) -> None:
    set_policy(slurming.container, "slurm", mode=ActionMode.AUTOMATIC, config=CONFIG)
    jobs = run_and_blame(slurming, cluster, "node-1")
    slurming.work()
    cluster.scontrol("update", "nodename=node-1", "state=resume")
    slurming.blame("node-1", job="other", launched_as=jobs["node-1"], scheduled=False)
    slurming.work()
    assert not cluster.is_drained("node-1")


def test_a_node_that_others_drained_is_left_alone(slurming: Acting, cluster: Slurm) -> None:
    set_policy(slurming.container, "slurm", mode=ActionMode.AUTOMATIC, config=CONFIG)
    run_and_blame(slurming, cluster, "node-1")
    cluster.scontrol("update", "nodename=node-1", "state=drain", "reason=bad disk")
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
    spy.write_text(f'#!/bin/sh\ntouch {called}\nexec {slurm.scontrol()} "$@"\n')
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


@pytest.mark.parametrize(
    "listed",
    ["node-1", "node-[1-2,05-07]", "a,b-[9-11],c[1]", "r[0-1]n[1-2]", "n[1-3],m[08-12,2]"],
)
def test_lists_of_nodes_are_read_as_slurm_reads_them(cluster: Slurm, listed: str) -> None:
    assert list(node_names(listed)) == cluster.scontrol("show", "hostnames", listed).split()


def test_jobs_of_the_accounts_and_users_are_read_whatever_their_names_hold(
    cluster: Slurm, means: AttemptTools
) -> None:
    # scontrol would print a line that looks like a job of the account on node-2.
    name = f"x\nJobId=9 Account={ACCOUNT} JobState=RUNNING NodeList=node-2|research|root|node-2"
    cluster.submit("node-2", account="other", name=name)
    job = cluster.submit("node-1", account=ACCOUNT, name=name)
    expected = [Placement("node-1", "node-1", f"slurm/{job}")]
    assert placements(Config(accounts=(ACCOUNT.upper(), "empty")), means) == expected
    assert placements(Config(accounts=(ACCOUNT,), users=("root", "nobody")), means) == expected
    assert placements(Config(accounts=(ACCOUNT,), users=("nobody",)), means) == []
    assert len(placements(Config(users=("root",)), means)) == 2
    assert placements(Config(accounts=("empty",)), means) == []
    with pytest.raises(DeliveryError, match="Name the Slurm accounts") as refused:
        placements(Config(), means)
    assert refused.value.code == "slurm.no_accounts"


def test_a_job_of_several_components_has_the_ids_of_all_that_its_processes_may_name(
    means: AttemptTools, tmp_path: Path
) -> None:
    found = placements(Config(accounts=("a",)), printing(means, tmp_path, "82|81+1|a|u|n[1-2]\n"))
    assert [(each.node, each.job) for each in found] == [
        *(("n1", "slurm/81"), ("n1", "slurm/82")),
        *(("n2", "slurm/81"), ("n2", "slurm/82")),
    ]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("1|1|a|u", "slurm.answer"),
        ("x|1|a|u|n1", "slurm.answer"),
        ("1|1|a|u|n[1-x]", "slurm.answer"),
        ("1|1|a|u|n[1-99999999]", "scheduler.too_large"),
        ("1|1|a|u|n[1-9999999999999]", "slurm.answer"),
        ("1|1|a|u|[0-99][0-99][0-99][0-99]n", "scheduler.too_large"),
    ],
)
def test_what_squeue_prints_is_bounded(
    means: AttemptTools, tmp_path: Path, line: str, code: str
) -> None:
    with pytest.raises(DeliveryError) as refused:
        placements(Config(accounts=("a",)), printing(means, tmp_path, f"{line}\n"))
    assert refused.value.code == code


def test_a_squeue_that_never_ends_is_ended(means: AttemptTools, tmp_path: Path) -> None:
    endless = printing(means, tmp_path, "", then="yes '1|1|b|u|n1'")
    with pytest.raises(DeliveryError, match="more than"):
        placements(Config(accounts=("a",)), endless)
    # A child of a wrapper holds its output open.
    silent = printing(means, tmp_path, "", then="sleep 600 & wait")
    with Outbound(AddressGuard(), 0.5) as outbound, pytest.raises(DeliveryError) as refused:
        placements(Config(accounts=("a",)), replace(silent, outbound=outbound))
    assert refused.value.code == "timeout"


def printing(means: AttemptTools, folder: Path, text: str, then: str = "true") -> AttemptTools:
    """Return tools whose squeue prints a text."""
    (folder / "printed").write_text(text)
    program = folder / "squeue"
    program.write_text(f"#!/bin/sh\ncat {folder / 'printed'}\n{then}\n")
    program.chmod(0o755)
    return replace(means, scontrol=str(folder / "scontrol"))
