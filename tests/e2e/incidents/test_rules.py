"""Rules in a browser: their text, their changes, and the preview."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from sqlalchemy import text

from app.analysis.report.session_verdict import SuspectedCause
from app.incidents import rule_store as alert_rules
from app.incidents.models.rules import CauseFound, NoData, Threshold
from app.incidents.store import load_rules
from tests.e2e.destroying import destroy
from tests.e2e.expecting import expect_well_made, in_every_look
from tests.e2e.looking import keep
from tests.e2e.visiting import NARROW, listen_again
from tests.support.alerting import LOOPBACK, Alerting
from tests.support.project import build
from tests.support.reads import read
from tests.support.receiver import Receiver
from tests.support.served import served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from app.incidents.models.rules import Rule
    from app.platform.container import Container
    from app.platform.settings import Settings
    from tests.e2e.visiting import Look, Visitor

IMBALANCE = SuspectedCause("stage_imbalance", ("stage 3",), confidence=0.6, contribution=0.5)


class Place:
    """A server without workers, and shortcuts to its alerts."""

    def __init__(self, url: str, container: Container) -> None:
        self.url = url
        self.container = container
        self.alerting = Alerting(container)

    def rule(self, name: str) -> Rule:
        [found] = [rule for rule in read(self.container, load_rules) if rule.name == name]
        return found

    def history(self, job: str, *slowdowns: float, ends: timedelta = timedelta(hours=6)) -> None:
        """Store a session of a job every six hours, the last one some time ago."""
        sessions = [self.alerting.session(value, IMBALANCE, job=job) for value in slowdowns]
        with self.container.uow() as tx:
            for back, session in enumerate(reversed(sessions)):
                tx.session.connection().execute(
                    text("UPDATE session SET received_at = now() - :span WHERE id = :session"),
                    {"span": ends + back * timedelta(hours=6), "session": session},
                )


@pytest.fixture
def place(settings: Settings) -> Iterator[Place]:
    container = build(settings.model_copy(update={"alert_allowed_networks": LOOPBACK}))
    with served(container, listen_again(settings)) as url:
        yield Place(url, container)
    container.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def press(page: Page, label: str) -> None:
    page.get_by_role("button", name=label, exact=True).click()


@in_every_look
def test_the_page_of_rules(place: Place, receiver: Receiver, visitor: Visitor, look: Look) -> None:
    place.alerting.channel(receiver, "slack-oncall")
    place.alerting.channel(receiver, "pager")
    place.alerting.slow("moe-1t")
    slow = (1.0, 1.3, 1.3, 1.3, 1.0, 1.0)
    place.history("dense-34b", *slow, *slow, *slow, ends=timedelta(days=3))
    place.history("vocab-7b", 1.0, 1.2, 1.2, 1.2)
    page = visitor.open(f"{place.url}/rules", look)
    expect(page.locator(".verdict h1")).to_have_text(
        "5 rules are on; 2\N{NO-BREAK SPACE}incidents are open"
    )
    expect(page.locator(".verdict .line")).to_contain_text("1 reaches no channel")
    expect(page.get_by_role("heading", name="A new rule")).to_be_visible()
    if look.size == NARROW:
        page.get_by_role("link", name="Slow job").tap()
    else:
        page.get_by_role("link", name="Slow job").click()
    expect(page).to_have_title("Rule Slow job · Paceline")
    press(page, "Preview")
    would = page.locator("#would")
    expect(would.locator("h2")).to_have_text(
        "It would have fired 5 times, in 3\N{NO-BREAK SPACE}jobs"
    )
    expect(would).to_contain_text("24\N{NO-BREAK SPACE}sessions of 3\N{NO-BREAK SPACE}jobs")
    expect(would.locator("tbody tr")).to_have_count(5)
    expect(would.locator("tbody tr").first).to_contain_text("moe-1t")
    expect(would.locator("tbody tr").first).to_contain_text("still open")
    expect(would.locator("tbody tr").last).to_contain_text("Stage imbalance: stage 3")
    keep(page, f"rules-{look.name}")
    expect_well_made(page, place.url, look)


def test_a_rule_is_added_edited_and_deleted(place: Place, visitor: Visitor) -> None:
    page = visitor.open(f"{place.url}/rules")
    page.get_by_label("Name", exact=True).fill("Wasteful")
    page.get_by_label("Condition").select_option("waste")
    page.get_by_label("From, %", exact=True).fill("20")
    page.get_by_label("Ends below, %").fill("17.5")
    page.get_by_label("Job names; * and ? stand for any letters").fill("llama-*, moe-1t")
    page.get_by_label("Labels").fill("owner=ann")
    page.get_by_label("low", exact=True).uncheck()
    page.get_by_label("Severity").select_option("critical")
    page.get_by_label("Or when not acknowledged for, min").fill("30")
    press(page, "Add rule")
    expect(page).to_have_url(re.compile(r"/rules/[0-9a-f-]{36}$"))
    expect(page.locator("#rules")).to_contain_text(
        "Waste by S of 20\N{NO-BREAK SPACE}% or more, 2 sessions in a row"
    )
    rule = place.rule("Wasteful")
    assert rule.condition == Threshold("waste", at_least=0.2, clears_below=0.175)
    assert rule.selector.jobs == ("llama-*", "moe-1t")
    assert rule.selector.labels == {"owner": "ann"}
    assert set(rule.selector.importance) == {"normal", "high"}
    assert rule.severity == "critical"
    assert rule.escalation is not None
    assert (rule.escalation.at_least, rule.escalation.after_minutes) == (None, 30)

    page.get_by_label("Condition").select_option("cause")
    page.get_by_label("From, %", exact=True).fill("90")
    page.get_by_label("Ends below, %").fill("80")
    page.get_by_label("Slow worker", exact=True).check()
    page.get_by_label("Sessions in a row that fire it").fill("1")
    press(page, "Save")
    expect(page.locator("#done")).to_have_text("Saved")
    expect(page.locator("#rules")).to_contain_text(
        "Slow worker with 90\N{NO-BREAK SPACE}% confidence, at once"
    )
    assert place.rule("Wasteful").condition == CauseFound(0.9, 0.8, ("slow_worker",))

    destroy(page, page.get_by_role("button", name="Delete the rule Wasteful"), "Delete rule")
    expect(page).to_have_url(f"{place.url}/rules")
    assert "Wasteful" not in [rule.name for rule in read(place.container, load_rules)]


def test_a_rule_that_comes_with_the_product_is_saved_as_it_was(
    place: Place, visitor: Visitor
) -> None:
    """Fields that the form does not have are kept."""
    for rule in read(place.container, load_rules):
        page = visitor.open(f"{place.url}/rules/{rule.id}")
        press(page, "Save")
        expect(page.locator("#done")).to_have_text("Saved")
        page.close()
        stored = place.rule(rule.name)
        assert set(stored.selector.importance) == set(rule.selector.importance)
        if isinstance(rule.condition, NoData):
            assert stored.condition == NoData(minutes=10, intervals=3)
        assert (stored.condition, stored.consecutive, stored.clear_sessions) == (
            rule.condition,
            rule.consecutive,
            rule.clear_sessions,
        )
        assert (stored.severity, stored.audience, stored.escalation) == (
            rule.severity,
            rule.audience,
            rule.escalation,
        )


def test_unsaved_text_survives_turning_another_rule_off(place: Place, visitor: Visitor) -> None:
    page = visitor.open(f"{place.url}/rules")
    page.get_by_label("Name", exact=True).fill("Half written")
    press(page, "Turn off No data")
    expect(page.get_by_role("button", name="Turn on No data")).to_be_focused()
    expect(page.locator(".verdict h1")).to_have_text("4 rules are on, and nothing is open")
    expect(page.get_by_label("Name", exact=True)).to_have_value("Half written")
    assert not place.rule("No data").enabled
    press(page, "Turn on No data")
    expect(page.get_by_role("button", name="Turn off No data")).to_be_visible()
    assert place.rule("No data").enabled


def test_faults_are_shown_next_to_their_fields(place: Place, visitor: Visitor) -> None:
    page = visitor.open(f"{place.url}/rules")
    name = page.get_by_label("Name", exact=True)
    press(page, "Add rule")
    expect(name).to_be_focused()
    expect(name).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#rule-name-fault")).to_have_text("Required.")

    name.fill("No data")
    page.get_by_label("Ends below, ×").fill("2")
    press(page, "Add rule")
    expect(page.locator("#rule-condition-clears_below-fault")).to_have_text(
        "“Ends below” must not be above “From”"
    )
    expect(page.locator("#rule-name-fault")).to_be_hidden()

    page.get_by_label("Ends below, ×").fill("1.05")
    press(page, "Add rule")
    expect(page.locator("#rule-name-fault")).to_have_text("Another rule has this name.")

    page.get_by_label("Condition").select_option("cause")
    page.get_by_label("From, %", exact=True).fill("120")
    press(page, "Preview")
    expect(page.locator("#rule-condition-at_least-fault")).to_have_text("Must be at most 100 %")
    page.get_by_label("Condition").select_option("no_data")
    press(page, "Preview")
    expect(page.locator("#rule-condition-minutes-fault")).to_have_text(
        "Minutes or intervals must be given"
    )
    assert len(read(place.container, load_rules)) == 5
    visitor.expects("422", "409")


def test_a_preview_says_that_it_did_not_read_everything(
    place: Place, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_rules, "PREVIEW_SESSIONS", 4)
    place.history("dense-34b", 1.0, 1.0, 1.3, 1.3, 1.3)
    page = visitor.open(f"{place.url}/rules/{place.rule('Slow job').id}")
    press(page, "Preview")
    expect(page.locator("#would h2")).to_have_text(
        "It would have fired once, in 1\N{NO-BREAK SPACE}job"
    )
    expect(page.locator("#would .cap p")).to_have_text(
        re.compile(
            "^Only the latest 4.sessions of 1.job, back to .* a preview does not read all sessions"
        )
    )
    page.get_by_label("From, ×", exact=True).fill("1.9")
    expect(page.locator("#would .cap p")).to_have_text(
        "The form has changed since; choose Preview again"
    )
    press(page, "Preview")
    expect(page.locator("#would h2")).to_have_text("It would not have fired")


def test_a_rule_that_is_not_there_is_not_found(place: Place, visitor: Visitor) -> None:
    page = visitor.open(f"{place.url}/rules/00000000-0000-0000-0000-000000000000")
    expect(page.locator("h1")).to_contain_text("no rule")
    visitor.expects("404")
