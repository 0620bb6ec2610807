"""Limits of actions under attack: an action takes out one machine only."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select, update

from app.access.projects import create_project
from app.actions.decide import decide
from app.actions.models import ActionMode
from app.actions.orders import allow, put_back
from app.actions.perform import sweep_actions
from app.actions.policies import set_switch
from app.errors import ConflictError
from app.incidents.evaluate import acknowledge_incident
from app.sessions.models.tables import Session
from tests.support.acting import LAUNCHED_AS, Acting
from tests.support.project import build

if TYPE_CHECKING:
    from tests.support.receiver import Receiver


def test_a_machine_that_two_sessions_blame_is_acted_on_once(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver)
    acting.blame()
    acting.work()
    acting.work()
    assert [str(one.state) for one in acting.actions()] == ["done"]
    assert len(receiver.got) == 1
    action = acting.action()
    assert (action.host, action.ordered_by, action.limits) == ("node-7", None, [])
    assert (action.sessions, action.confidence) == (2, 0.97)
    assert action.gpus == ["GPU-node-7-3"]


def test_a_hundred_incidents_in_a_minute_act_on_one_node(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver)
    acting.schedule_over_days(*(f"node-{number}" for number in range(100)))
    for number in range(100):
        acting.blame(f"node-{number}", job=f"job-{number}")
    acting.work()
    states = Counter(state for [state] in acting.states().values())
    assert states == {"done": 1, "held": 99}
    assert acting.states()["node-0"] == ["done"]
    assert len(receiver.got) == 1
    # All actions are made in one pass, in any order.
    assert acting.action_of("node-99").limits == ["action.one_an_hour"]


def test_a_second_node_follows_when_an_hour_passed_and_the_first_is_back(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver)
    acting.blame("node-1", job="one")
    acting.blame("node-2", job="two")
    acting.work()
    assert acting.states() == {"node-1": ["done"], "node-2": ["held"]}
    acting.time_passes(timedelta(minutes=61))
    acting.work()
    assert acting.action_of("node-2").limits == ["action.too_many_out"]
    put_back(acting.container, acting.action_of("node-1").id)
    acting.work()
    assert acting.states() == {"node-1": ["released"], "node-2": ["done"]}


def test_a_guessed_name_is_never_acted_on_not_even_by_a_person(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver)
    acting.blame("llm-worker-0", guessed=True)
    acting.work()
    action = acting.action()
    assert str(action.state) == "held"
    assert "action.guessed_node" in action.limits
    with pytest.raises(ConflictError) as refused:
        allow(acting.container, action.id)
    assert refused.value.stable_code == "action.guessed_node"
    assert receiver.got == []


@pytest.mark.parametrize(
    "host",
    [
        "node-[1-99]",
        "x; reboot",
        "$(reboot)",
        "-all",
        "ALL",
        "a,b",
        "n" * 300,
        "nöde-7",
        "node 7",
        "節点",
    ],
)
def test_a_name_of_more_than_one_node_is_refused_with_a_code(
    acting: Acting, receiver: Receiver, host: str
) -> None:
    acting.events(receiver)
    acting.blame(host)
    acting.work()
    action = acting.action()
    assert str(action.state) == "held"
    assert action.limits[0] == "action.not_one_node"
    with pytest.raises(ConflictError) as refused:
        allow(acting.container, action.id)
    assert refused.value.stable_code == "action.not_one_node"
    assert receiver.got == []


def test_a_node_of_another_cluster_is_not_known_here(acting: Acting, receiver: Receiver) -> None:
    acting.events(receiver)
    # No session of the project ran on this node; only incidents name it.
    acting.alerting.slow(job="llm", host="elsewhere-1")
    acting.work()
    action = acting.action()
    assert "action.unknown_node" in action.limits
    with pytest.raises(ConflictError) as refused:
        allow(acting.container, action.id)
    assert refused.value.stable_code == "action.unknown_node"
    assert receiver.got == []


def test_low_confidence_and_one_session_hold_it_until_a_person_allows_it(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver)
    acting.blame(confidence=0.94)
    acting.work()
    assert acting.action().limits == ["action.low_confidence"]
    assert receiver.got == []
    allow(acting.container, acting.action().id)
    acting.work()
    assert str(acting.action().state) == "done"
    assert acting.action().ordered_by is not None
    # An action that a person allowed against a limit is not reported as confirmed.
    assert receiver.got[0].json["type"] == "dev.paceline.machine.degraded"


def test_one_session_is_not_enough(acting: Acting, receiver: Receiver) -> None:
    acting.events(receiver)
    acting.alerting.slow()
    acting.schedule(("node-7", LAUNCHED_AS))
    with acting.container.uow() as tx:
        session = tx.session.execute(select(Session.id).limit(1)).scalar_one()
    acting.reading(session, "node-7", "slow_worker")
    acting.work()
    assert acting.action().limits == ["action.seen_once"]
    assert receiver.got == []


def test_late_data_hold_it(acting: Acting, receiver: Receiver) -> None:
    acting.events(receiver)
    acting.blame()
    acting.evidence_ages(timedelta(minutes=61))
    acting.work()
    assert acting.action().limits == ["action.late_data"]
    assert receiver.got == []


def test_sessions_that_wait_for_their_analysis_hold_everything(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver)
    acting.blame()
    with acting.container.uow() as tx:
        one = select(Session.id).limit(1).scalar_subquery()
        tx.session.execute(
            update(Session)
            .where(Session.id == one)
            .values(state="queued", received_at=Session.received_at - timedelta(minutes=11))
        )
    acting.work()
    assert acting.action().limits == ["action.late_data"]
    assert receiver.got == []


def test_an_incident_that_a_person_handles_is_left_alone(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver)
    acting.blame()
    acknowledge_incident(acting.container, acting.alerting.incident().id)
    acting.work()
    assert acting.action().limits == ["action.in_hand"]
    assert receiver.got == []


@pytest.mark.parametrize(
    "cause", ["expert_parallel_imbalance", "memory_fragmentation", "stage_imbalance"]
)
def test_a_fault_of_the_job_itself_blames_no_machine(
    acting: Acting, receiver: Receiver, cause: str
) -> None:
    acting.events(receiver)
    acting.blame(cause=cause)
    acting.work()
    assert acting.alerting.incidents()
    assert acting.actions() == []


def test_a_person_s_return_is_respected_for_a_day(acting: Acting, receiver: Receiver) -> None:
    acting.events(receiver)
    acting.blame()
    acting.work()
    put_back(acting.container, acting.action().id)
    acting.work()
    assert str(acting.action().state) == "released"
    # Another job blames the node with a higher confidence.
    acting.blame(job="other", confidence=0.99)
    acting.work()
    assert acting.states() == {"node-7": ["released", "held"]}
    assert acting.actions()[-1].limits == ["action.put_back"]
    assert len(receiver.got) == 2  # confirmed, recovered
    acting.time_passes(timedelta(days=1, minutes=1))
    acting.blame(job="third", confidence=0.99)
    acting.work()
    # Both jobs blame one machine, so the second action is for the same machine.
    assert acting.states() == {"node-7": ["released", "done"]}


def test_two_servers_at_once_act_once(acting: Acting, receiver: Receiver) -> None:
    acting.events(receiver)
    for number in range(5):
        acting.blame(f"node-{number}", job=f"job-{number}")
    others = [build(acting.container.settings) for _ in range(4)]
    together = threading.Barrier(4)

    def look(index: int) -> None:
        together.wait(30)
        for _ in range(5):
            sweep_actions(others[index])

    threads = [threading.Thread(target=look, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in others:
        one.close()
    acting.work()
    assert sorted(state for [state] in acting.states().values()) == ["done"] + ["held"] * 4
    assert len(receiver.got) == 1


def test_the_kill_switch_stops_actions_that_are_already_ordered(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver)
    acting.blame()
    acting.look()
    assert str(acting.action().state) == "waiting"
    set_switch(acting.container, stopped=True, reason="maintenance")
    acting.work()
    assert str(acting.action().state) == "held"
    assert acting.action().limits == ["action.stopped"]
    with pytest.raises(ConflictError) as refused:
        allow(acting.container, acting.action().id)
    assert refused.value.stable_code == "action.stopped"
    assert receiver.got == []
    set_switch(acting.container, stopped=False)
    acting.work()
    assert str(acting.action().state) == "done"


def test_the_operator_s_switch_stops_every_project(acting: Acting, receiver: Receiver) -> None:
    acting.events(receiver)
    acting.blame()
    off = build(acting.container.settings.model_copy(update={"actions_off": True}))
    sweep_actions(off)
    off.close()
    assert acting.action().limits == ["action.stopped"]
    assert receiver.got == []


def test_a_policy_that_is_turned_off_meanwhile_does_nothing(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver)
    acting.blame()
    acting.look()
    acting.events(receiver, ActionMode.OFF)
    acting.work()
    assert str(acting.action().state) == "withdrawn"
    assert receiver.got == []


def test_projects_share_the_ceiling_of_all_known_nodes(acting: Acting, receiver: Receiver) -> None:
    """The limit counts nodes of the cluster, drained by any project."""
    container = acting.container
    others = []
    for name in ("first", "second", "third"):
        project = create_project(container.everywhere(), name).id
        others.append(Acting(container.within(project)))
    for number, other in enumerate(others):
        other.events(receiver)
        other.blame(f"node-{number}", job=f"job-{number}")
    others[0].work()
    states = [str(other.action().state) for other in others]
    assert states == ["done", "held", "held"]
    assert others[1].action().limits == ["action.too_many_everywhere"]
    assert len(receiver.got) == 1
    # A person of another project can override the limit, without seeing the other project's
    # machine.
    allow(others[1].container, others[1].action().id)
    others[1].work()
    assert str(others[1].action().state) == "done"
    put_back(others[0].container, others[0].action().id)
    put_back(others[1].container, others[1].action().id)
    for other in others:
        other.work()
    assert str(others[2].action().state) == "done"


def test_servers_that_look_at_several_projects_at_once_act_once(
    acting: Acting, receiver: Receiver
) -> None:
    container = acting.container
    projects = [create_project(container.everywhere(), f"p-{number}").id for number in range(3)]
    for number, project in enumerate(projects):
        one = Acting(container.within(project))
        one.events(receiver)
        one.blame(f"node-{number}", job=f"job-{number}")
    built = [build(container.settings) for _ in projects]
    together = threading.Barrier(len(projects))

    def look(index: int) -> None:
        together.wait(30)
        decide(built[index].within(projects[index]))

    threads = [threading.Thread(target=look, args=(index,)) for index in range(len(projects))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for other in built:
        other.close()
    sweep_actions(container)
    found = [Acting(container.within(project)).action() for project in projects]
    assert sorted(str(one.state) for one in found) == ["held", "held", "waiting"]
