"""Forged sessions: what a sender claims acts on no machine that the scheduler does not confirm."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest

from app.access.projects import create_project
from app.actions.models import ActionMode
from app.actions.orders import allow
from app.actions.policies import SchedulerView, list_policies, set_policy
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes
from app.analysis.trace.rank_metadata import Whereabouts
from app.errors import ConflictError
from app.hosts.repairs import note_repair
from app.incidents.evaluate import resolve_incident
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from tests.support.acting import LAUNCHED_AS, Acting
from tests.support.kubernetes import TOKEN, Kubernetes
from tests.support.sessions import store

if TYPE_CHECKING:
    from app.analysis.trace.model import Trace
    from tests.support.receiver import Receiver
    from tests.support.slurm import Slurm

ACCOUNT: Final = "research"
OWN: Final = {"accounts": [ACCOUNT]}


def trace_on(host: str, job: str | None, seed: int) -> Trace:
    """Return a session in which the worker on a host is slow, as its sender describes it."""
    model = JobModel(Sizes(dp=4, pp=2), microbatches=4, steps=12)
    made = synthesize(model, [SlowWorker((3, 0), 1.8)], seed=seed).trace
    [slow] = {int(rank) for rank in made.rank[(made.dp == 3) & (made.pp == 0)]}
    hosts = {rank: f"mine-{rank}" for rank in range(made.meta.sizes.world)} | {slow: host}
    launcher = {} if job is None else {"name": "slurm", "job": job}
    whereabouts = Whereabouts(launcher=launcher)
    return replace(made, meta=replace(made.meta, hosts=hosts, whereabouts=whereabouts))


def send(acting: Acting, host: str, job: str | None, *, sessions: int = 4) -> None:
    """Let sessions arrive and be analyzed."""
    keeper = LeaseKeeper(acting.container)
    for seed in range(sessions):
        stored = store(acting.container, trace_on(host, job, seed), job=f"job-on-{host}")
        execute(acting.container, keeper, stored.run)
    keeper.stop()


def scheduler_of(acting: Acting, kind: str) -> SchedulerView:
    with acting.container.reading() as tx:
        [scheduler] = [one.scheduler for one in list_policies(tx) if one.kind == kind]
    assert scheduler is not None
    return scheduler


def test_forged_hosts_drain_no_node(slurming: Acting, cluster: Slurm) -> None:
    foreign = cluster.submit("node-1", account="theirs")
    own = cluster.submit("node-2", account=ACCOUNT)
    set_policy(slurming.container, "slurm", mode=ActionMode.AUTOMATIC, config=OWN)
    slurming.work()
    send(slurming, "node-1", None)
    send(slurming, "node-1", foreign, sessions=1)
    send(slurming, "node-1", own, sessions=1)
    slurming.work()
    assert not cluster.is_drained("node-1")
    action = slurming.action_of("node-1")
    assert action.limits == ["action.unknown_node", "action.unconfirmed_job"]
    with pytest.raises(ConflictError) as refused:
        allow(slurming.container, action.id)
    assert refused.value.stable_code == "action.unknown_node"
    # Nor does a job that runs elsewhere, or a missing one, blame a node of the project.
    send(slurming, "node-2", foreign, sessions=2)
    send(slurming, "node-2", None, sessions=2)
    slurming.work()
    assert slurming.action_of("node-2").limits == ["action.unconfirmed_job"]
    assert not cluster.is_drained("node-2")
    # The job that runs there does, also when it has just ended.
    cluster.cancel(own)
    send(slurming, "node-2", own, sessions=2)
    slurming.work()
    assert slurming.action_of("node-2").sessions == 2
    assert cluster.is_drained("node-2")


def test_without_accounts_no_node_is_the_project_s(slurming: Acting, cluster: Slurm) -> None:
    job = cluster.submit("node-1", account=ACCOUNT)
    set_policy(slurming.container, "slurm", mode=ActionMode.AUTOMATIC)
    slurming.work()
    send(slurming, "node-1", job)
    slurming.work()
    assert "action.unknown_node" in slurming.action().limits
    assert scheduler_of(slurming, "slurm").error_code == "slurm.no_accounts"
    # Once they are named, the next pass knows the node, and the one after it what to do.
    set_policy(slurming.container, "slurm", config=OWN)
    slurming.work()
    assert cluster.is_drained("node-1")
    # Names that are taken back take their nodes along.
    assert scheduler_of(slurming, "slurm").nodes == 1
    set_policy(slurming.container, "slurm", config={"accounts": ["none"]})
    assert scheduler_of(slurming, "slurm").nodes == 0
    slurming.work()
    assert (scheduler_of(slurming, "slurm").nodes, scheduler_of(slurming, "slurm").error) == (
        0,
        None,
    )


def test_forged_host_names_do_not_raise_the_number_that_may_be_out(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver)
    for number in range(200):
        session = acting.alerting.session(1.0, job="forged")
        acting.reading(session, f"forged-{number}", None)
    acting.blame("node-1", job="one")
    acting.work()
    acting.time_passes(timedelta(hours=2))
    acting.blame("node-2", job="two")
    acting.work()
    assert acting.states() == {"node-1": ["done"], "node-2": ["held"]}
    assert acting.action_of("node-2").limits == ["action.too_many_out"]
    # Nor do nodes that the scheduler gave the project only now.
    acting.schedule(*((f"new-{number}", LAUNCHED_AS) for number in range(200)))
    acting.work()
    assert acting.action_of("node-2").limits == ["action.too_many_out"]
    acting.schedule_over_days(*(f"old-{number}" for number in range(100)))
    acting.work()
    assert acting.states()["node-2"] == ["done"]


def test_a_node_of_another_project_is_out_of_reach_and_its_own_project_s_actions_go_on(
    acting: Acting, receiver: Receiver
) -> None:
    container = acting.container
    theirs = Acting(container.within(create_project(container.everywhere(), "theirs").id))
    theirs.events(receiver)
    acting.events(receiver)
    theirs.schedule(("node-7", "slurm/9"))
    acting.blame("node-7", scheduled=False, launched_as="slurm/9", sessions=4)
    acting.work()
    assert "action.unknown_node" in acting.action().limits
    with pytest.raises(ConflictError) as refused:
        allow(acting.container, acting.action().id)
    assert refused.value.stable_code == "action.unknown_node"
    # The project that runs there acts as if no other project had named it.
    theirs.blame("node-7", scheduled=False, launched_as="slurm/9")
    theirs.work()
    assert str(theirs.action().state) == "done"
    [got] = receiver.got
    assert got.json["data"]["job"] == "llm"


def test_a_node_that_went_to_another_project_is_out_of_reach(
    acting: Acting, receiver: Receiver
) -> None:
    container = acting.container
    theirs = Acting(container.within(create_project(container.everywhere(), "theirs").id))
    acting.events(receiver)
    acting.blame()
    acting.schedule(("node-8", LAUNCHED_AS))
    theirs.schedule(("node-7", "slurm/9"))
    acting.work()
    action = acting.action()
    assert (str(action.state), action.limits) == ("held", ["action.other_project"])
    with pytest.raises(ConflictError) as refused:
        allow(acting.container, action.id)
    assert refused.value.stable_code == "action.other_project"
    # It is back once only the project's own jobs run there for a while.
    theirs.time_passes(timedelta(minutes=6))
    acting.schedule(("node-7", LAUNCHED_AS))
    acting.work()
    assert str(acting.action().state) == "done"


def test_a_node_lost_between_the_decision_and_the_act_is_left_alone(
    acting: Acting, receiver: Receiver
) -> None:
    container = acting.container
    theirs = Acting(container.within(create_project(container.everywhere(), "theirs").id))
    acting.events(receiver)
    acting.blame()
    acting.look()
    assert str(acting.action().state) == "waiting"
    theirs.schedule(("node-7", "slurm/9"))
    acting.work()
    assert (str(acting.action().state), receiver.got) == ("held", [])
    assert acting.action().limits == ["action.other_project"]


def test_an_incident_that_ends_between_the_decision_and_the_act_stops_it(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver)
    acting.blame()
    acting.look()
    resolve_incident(acting.container, acting.alerting.incident().id)
    acting.work()
    assert (str(acting.action().state), receiver.got) == ("withdrawn", [])


def test_events_without_a_scheduler_need_a_person(acting: Acting, receiver: Receiver) -> None:
    acting.events(receiver)
    acting.blame(scheduled=False)
    acting.work()
    action = acting.action()
    assert (str(action.state), action.limits) == ("held", ["action.unconfirmed_job"])
    allow(acting.container, action.id)
    acting.work()
    [got] = receiver.got
    assert got.json["type"] == "dev.paceline.machine.degraded"


def test_a_policy_in_a_dry_run_confirms_what_events_say(
    slurming: Acting, cluster: Slurm, receiver: Receiver
) -> None:
    job = cluster.submit("node-1", account=ACCOUNT)
    slurming.events(receiver)
    set_policy(slurming.container, "slurm", config=OWN)
    slurming.work()
    send(slurming, "node-1", job)
    slurming.work()
    assert [got.json["type"] for got in receiver.got] == ["dev.paceline.machine.confirmed"]
    assert not cluster.is_drained("node-1")


def test_forged_sessions_neither_raise_the_confidence_nor_hold_up_an_action(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver)
    acting.blame(confidence=0.9)
    acting.blame(confidence=1.0, launched_as="slurm/666", scheduled=False)
    acting.work()
    action = acting.action()
    assert (action.limits, action.confidence) == (["action.low_confidence"], 0.9)
    # The incident keeps the facts of the last session, which is forged.
    acting.blame("node-8", job="other")
    acting.blame("node-8", job="other", confidence=0.5, launched_as=None, scheduled=False)
    acting.work()
    other = acting.action_of("node-8")
    assert (str(other.state), other.confidence, other.sessions) == ("done", 0.97, 2)


def test_forged_healthy_sessions_do_not_withdraw_what_waits(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver, ActionMode.ASK)
    acting.blame()
    acting.work()
    acting.well(sessions=3, launched_as=None)
    acting.work()
    assert str(acting.alerting.incident().state) == "resolved"
    assert str(acting.action().state) == "asked"
    allow(acting.container, acting.action().id)
    acting.work()
    assert str(acting.action().state) == "done"
    # Healthy sessions that the scheduler confirms do.
    acting.blame("node-8", job="other")
    acting.work()
    acting.well("node-8", job="other", sessions=3)
    acting.work()
    assert str(acting.action_of("node-8").state) == "withdrawn"


def test_forged_healthy_sessions_release_no_machine(acting: Acting, receiver: Receiver) -> None:
    acting.events(receiver)
    acting.blame()
    acting.work()
    acting.time_passes(timedelta(hours=2))
    with acting.container.uow() as tx:
        at = tx.now - timedelta(hours=1)
    note_repair(acting.container, "node-7", what="replaced GPU 3", at=at)
    acting.well(sessions=3, launched_as="slurm/666")
    acting.work()
    assert str(acting.action().state) == "done"
    acting.well(sessions=2)
    acting.work()
    assert str(acting.action().state) == "released"


def test_a_scheduler_that_does_not_answer_keeps_its_last_inventory_and_delays_no_action(
    acting: Acting, receiver: Receiver
) -> None:
    with Kubernetes("node-1") as cluster:
        config = {"server": cluster.url, "token": TOKEN, "namespaces": ["ml"]}
        set_policy(acting.container, "kubernetes", config=config)
        pod = cluster.run("ml", "pod", "node-1")
        acting.work()
        cluster.denied = True
    acting.events(receiver)
    acting.blame("node-1", launched_as=pod, scheduled=False)
    acting.make_inventories_due()
    acting.work()
    scheduler = scheduler_of(acting, "kubernetes")
    assert (scheduler.error_code, scheduler.nodes) == ("connection.failed", 1)
    assert [one.limits for one in acting.actions()] == [[], []]
    assert len(receiver.got) == 1
    # An hour later the inventory is too old.
    acting.scheduler_is_silent_for(timedelta(minutes=61))
    acting.work()
    [dry] = [one for one in acting.actions() if one.kind == "kubernetes"]
    assert dry.limits == ["action.late_data"]
