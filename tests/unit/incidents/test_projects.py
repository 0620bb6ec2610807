"""Messages of two projects whose jobs have the same name: neither ends the other's incidents."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from app.incidents.channels.alertmanager import push_body, webhook_body
from app.incidents.channels.pagerduty import events
from app.incidents.message import Message
from app.platform.database.projects import DEFAULT_PROJECT
from tests.integration.incidents.messages import incident, message


def of(project: str, **labels: str) -> Message:
    made = message(incident(1))
    alerts = tuple(
        replace(alert, facts=replace(alert.facts, labels=labels))
        for alert in made.alerts
        if alert.facts is not None
    )
    return replace(made, project=project, alerts=alerts)


def test_alertmanager_tells_the_projects_apart() -> None:
    first, second = (
        {tuple(sorted(alert["labels"].items())) for alert in push_body(of(project))}
        for project in ("research", "products")
    )
    assert not first & second


def test_pagerduty_and_webhooks_tell_the_projects_apart() -> None:
    default, other = of(DEFAULT_PROJECT), of("research")
    keys = {events(made, "key")[0]["dedup_key"] for made in (default, other)}
    assert keys == {
        f"paceline-{default.main.fingerprint}",
        f"paceline-research-{default.main.fingerprint}",
    }
    assert webhook_body(default)["groupKey"] != webhook_body(other)["groupKey"]
    assert webhook_body(other)["alerts"][0]["labels"]["project"] == "research"


def test_alerts_are_routed_by_the_job_s_team_and_owner() -> None:
    alert = push_body(of("research", team="vision", owner="ada", branch="main"))[0]
    assert (alert["labels"]["team"], alert["labels"]["owner"]) == ("vision", "ada")
    assert "branch" not in alert["labels"]


def test_an_example_ends_soon() -> None:
    made = replace(of("research"), test=True)
    ends = datetime.fromisoformat(push_body(made)[0]["endsAt"])
    assert (ends - made.at).total_seconds() == 300
