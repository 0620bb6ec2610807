"""Sentences of the page of rules."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from app.incidents.channel_reads import DISABLED_BY_PERSON, ChannelView
from app.incidents.models.rules import (
    DEFAULT_RULES,
    CauseFound,
    NoData,
    Rule,
    Selector,
    Threshold,
    Weekly,
)
from app.incidents.pages.rules import condition_words, jobs_words, notified_channels, rules_page
from tests.unit.incidents.pages.channels import texts

NBSP = "\N{NO-BREAK SPACE}"
SLOW = DEFAULT_RULES[0]
NOW = datetime(2026, 11, 24, 9, 30, tzinfo=UTC)


def test_the_time_of_a_summary_is_an_element_of_the_page() -> None:
    weekly = Rule(uuid.UUID(int=1), "week", Weekly("monday", 7))
    [line] = rules_page([weekly], [], [], None, NOW).table.lines
    assert 'datetime="2026-11-23T07:00:00+00:00"' in line.drawn
    assert texts(line)[1] == f"week{condition_words(weekly)}"


def channel(name: str, **changes: object) -> ChannelView:
    view = ChannelView(
        id=uuid.uuid4(),
        name=name,
        kind="slack",
        audience="on_call",
        rate_limit=10,
        selector=Selector(),
        config={},
        secrets={},
        readable=True,
        enabled=True,
        disabled_reason=None,
        failures=0,
        last_error=None,
        last_failure_at=None,
        last_success_at=None,
        waiting=0,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    return replace(view, **changes)  # type: ignore[arg-type]  # what a test varies


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (SLOW, "Slowdown of 1.1× or more, 2 sessions in a row"),
        (DEFAULT_RULES[1], f"Steps at least 5{NBSP}% longer than usual, 2 sessions in a row"),
        (DEFAULT_RULES[2], f"Slow worker with 90{NBSP}% confidence, at once"),
        (DEFAULT_RULES[3], "No session for 3 usual intervals and 10 min"),
        (DEFAULT_RULES[4], f"Discrepancy of 5{NBSP}% or more, 2 sessions in a row"),
        (
            replace(SLOW, condition=Threshold("slowdown", 1.2, 1.1)),
            "S of 1.2× or more, 2 sessions in a row",
        ),
        (
            replace(SLOW, condition=Threshold("waste", 0.125, 0.1)),
            f"Waste by S of 12.5{NBSP}% or more, 2 sessions in a row",
        ),
        (
            replace(SLOW, condition=Threshold("gpu_hours_lost", 40, 30), consecutive=1),
            "40 GPU-hours or more lost by S, at once",
        ),
        (
            replace(SLOW, condition=CauseFound(0.9, 0.8), consecutive=3),
            f"Any cause with 90{NBSP}% confidence, 3 sessions in a row",
        ),
        (replace(SLOW, condition=NoData(minutes=90)), "No session for 90 min"),
    ],
)
def test_conditions_are_sentences(rule: Rule, words: str) -> None:
    assert condition_words(rule) == words


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        (Selector(), "all"),
        (Selector(importance=("low", "normal", "high")), "all"),
        (Selector(importance=("normal", "high")), "not low importance"),
        (Selector(importance=("high",)), "high importance"),
        (Selector(jobs=("llama-*",), labels={"owner": "ann"}), "llama-*, owner ann"),
        (Selector(jobs=("a", "b", "c", "d", "e")), "a, b and 3 more"),
    ],
)
def test_selectors_say_which_jobs(selector: Selector, words: str) -> None:
    assert jobs_words(selector) == words


def test_a_rule_is_sent_to_the_channels_that_are_enabled() -> None:
    hears = channel("hears")
    channels = [
        hears,
        channel("of owners", audience="owner"),
        channel("off", enabled=False, disabled_reason=DISABLED_BY_PERSON),
        channel("dead", failures=9),
        channel("keyless", readable=False),
    ]
    assert notified_channels(SLOW, channels) == ["hears"]
    assert notified_channels(replace(SLOW, audience="owner"), channels) == ["of owners"]
    assert notified_channels(replace(SLOW, channels=(uuid.uuid4(),)), channels) == []
    assert notified_channels(replace(SLOW, audience="owner", channels=(hears.id,)), channels) == [
        "hears"
    ]


def test_a_rule_that_reaches_no_channel_is_named() -> None:
    page = rules_page(DEFAULT_RULES, [channel("pager")], [], None, NOW)
    assert page.heading == "5 rules are on, and nothing is open"
    assert page.list_title == "Low trace quality reaches no channel"
    unheard = [line for line in page.table.lines if "#g-warn" in line.drawn]
    assert [texts(line)[1].startswith("Low trace quality") for line in unheard] == [True]


def test_without_a_channel_no_rule_reaches_anybody() -> None:
    assert rules_page(DEFAULT_RULES, [], [], None, NOW).list_title == "No rule reaches a channel"


def test_rules_that_are_all_off_are_the_heading() -> None:
    page = rules_page([replace(SLOW, enabled=False)], [], [], None, NOW)
    assert page.heading == "No rule is on: no messages are sent"
    assert page.list_title == "Nothing holds at present"


def test_the_form_has_shares_in_per_cent_as_people_write_them() -> None:
    page = rules_page(DEFAULT_RULES, [], [], DEFAULT_RULES[1], NOW)
    assert (page.form.at_least.value, page.form.clears_below.value) == ("5", "3")
    assert page.form.minutes.value == ""
    assert page.title == "Rule Regression against the job's baseline"
