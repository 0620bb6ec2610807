"""The page of actions: its list, its CSV file, and the right to change actions."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import httpx

from app.actions.listed import STATES_SHOWN, Show, machine_actions
from app.actions.models import ActionMode, ActionState
from app.actions.pages import STATES
from app.actions.policies import set_policy
from app.hosts.repairs import note_repair
from tests.support.kubernetes import TOKEN, Kubernetes

if TYPE_CHECKING:
    from tests.support.acting import Acting
    from tests.support.receiver import Receiver


def rows(client: httpx.Client, query: str = "") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(client.get(f"/actions.csv{query}").text)))


def test_actions_are_filtered_by_the_address(
    acting: Acting, receiver: Receiver, client: httpx.Client
) -> None:
    acting.events(receiver)
    acting.blame("node-1", job="one")
    acting.blame("node-2", job="two", confidence=0.5)
    acting.work()
    assert {(row["host"], row["state"]) for row in rows(client)} == {
        ("node-1", "done"),
        ("node-2", "held"),
    }
    for query, hosts in (
        ("?show=person", ["node-2"]),
        ("?show=out", ["node-1"]),
        ("?show=over", []),
        ("?host=node-1", ["node-1"]),
        ("?host=node", []),
        ("?q=two", ["node-2"]),
        ("?q=slow+worker+node-1", ["node-1"]),
        ("?q=%25", []),
        ("?kind=slurm", []),
        ("?sort=host", ["node-1", "node-2"]),
        ("?sort=-host", ["node-2", "node-1"]),
        ("?show=nothing&page=x&sort=-host&q=%00&kind=%00", ["node-2", "node-1"]),
    ):
        assert [row["host"] for row in rows(client, query)] == hosts, query
        page = client.get(f"/actions{query}")
        assert page.status_code == 200, query
        assert page.text.count('class="cmd"') == len(hosts), query


def test_the_page_shows_an_action_s_command_and_why_it_waits(
    acting: Acting, receiver: Receiver, client: httpx.Client
) -> None:
    acting.events(receiver)
    acting.blame("x; reboot")
    acting.work()
    page = client.get("/actions").text
    assert "The host&#39;s name is not that of one node" in page
    # No person can allow this action, only decline it.
    assert 'data-order="allow"' not in page
    # There is no command to copy either.
    assert 'class="cmd"' not in page
    assert acting.action().command == ""
    assert 'data-order="decline"' in page
    assert receiver.url not in page


def test_the_page_says_what_the_scheduler_knows_and_what_is_missing(
    acting: Acting, client: httpx.Client
) -> None:
    with Kubernetes("node-1") as cluster:
        config = {"server": cluster.url, "token": TOKEN}
        set_policy(acting.container, "kubernetes", config=config)
        assert "the scheduler has not been asked yet" in client.get("/actions").text
        acting.work()
        assert "Name the namespaces of this project in the policy" in client.get("/actions").text
        cluster.run("ml", "pod", "node-1")
        set_policy(acting.container, "kubernetes", config={"namespaces": ["ml"]})
        acting.work()
        page = client.get("/actions").text
    assert "the scheduler ran jobs of this project on 1" in page
    [policy] = [
        one
        for one in client.get("/api/v1/action-policies").json()["policies"]
        if one["kind"] == "kubernetes"
    ]
    assert (policy["scheduler"]["nodes"], policy["scheduler"]["error"]) == (1, None)


def test_a_repair_of_a_machine_that_is_out_says_that_a_person_puts_it_back(
    acting: Acting, receiver: Receiver, client: httpx.Client
) -> None:
    acting.events(receiver)
    acting.blame()
    acting.work()
    before = client.get("/actions").text
    assert "A repair is noted since" not in before
    note_repair(acting.container, "node-7", what="replaced GPU 3")
    acting.work()
    # Without a session after the repair, it is unknown whether the repair helped.
    assert str(acting.action().state) == "done"
    assert acting.action().repaired_at is not None
    after = client.get("/actions").text
    assert "A repair is noted since" in after
    # Open pages are updated.
    assert version(before) != version(after)


def version(page: str) -> str:
    return page.partition('data-version="')[2].partition('"')[0]


def test_only_the_project_s_own_part_of_a_machine_is_read(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver, ActionMode.ASK)
    acting.blame()
    acting.work()
    container = acting.container
    with container.reading() as tx:
        found = machine_actions(tx, container.settings, "node-7")
    assert [row.state for row in found.rows] == [ActionState.ASKED]
    assert found.modes == {"event": ActionMode.ASK}
    other = container.within(container.project_id + 1)
    with other.reading() as tx:
        foreign = machine_actions(tx, container.settings, "node-7")
    assert (foreign.rows, foreign.modes) == ([], {})


def test_every_state_has_a_word_and_a_place() -> None:
    assert set(STATES) == set(ActionState)
    parts = [
        state for show, states in STATES_SHOWN.items() if show is not Show.ALL for state in states
    ]
    assert sorted(parts) == sorted(ActionState)
