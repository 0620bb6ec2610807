"""The page of channels: alive, dead and disabled ones, with the reason."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from app.incidents.channel_reads import DISABLED_BY_PERSON, Tally
from app.incidents.channel_settings import Undelivered
from app.incidents.channel_writes import RATE_LIMIT
from app.incidents.models.rules import Selector
from app.incidents.pages.channels import (
    ChannelsPage,
    channel_state,
    channels_page,
    channels_title,
    last_answer,
)
from app.incidents.pages.parts import ANSWER_CHARACTERS, failure_text
from tests.unit.incidents.pages.channels import NOW, channel, delivery, texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.incidents.channel_reads import ChannelView

REFUSED = "The receiver answered 410."
UNREADABLE = "no available key decrypts its secrets"


def page_of(
    *channels: ChannelView,
    lost: tuple[Sequence[Undelivered], int] = ((), 0),
    tallies: dict[uuid.UUID, Tally] | None = None,
    **changes: Any,  # noqa: ANN401 - of the page
) -> ChannelsPage:
    asked: dict[str, Any] = {"selected": None, "adding": False, "apprise": False} | changes
    return channels_page(channels, tallies or {}, lost, NOW, **asked)


def undelivered(
    state: str,
    *,
    overtaken: bool = False,
    can_replay: bool = True,
    **changes: Any,  # noqa: ANN401 - fields of DeliveryRow
) -> Undelivered:
    refused = {"attempt": 2, "error": "The receiver answered 503.", "answer": "maintenance"}
    return Undelivered(
        delivery(state, **(refused | changes)), overtaken=overtaken, can_replay=can_replay
    )


@pytest.mark.parametrize(
    ("changes", "word", "answer"),
    [
        ({}, "Alive", "8\N{NO-BREAK SPACE}min ago"),
        ({"last_success_at": None}, "Not used yet", "nothing sent yet"),
        ({"failures": 1, "last_error": REFUSED}, "Retrying", REFUSED),
        ({"failures": 3, "last_error": REFUSED}, "Dead", REFUSED),
        ({"enabled": False, "disabled_reason": REFUSED}, "Dead", REFUSED),
        ({"enabled": False, "disabled_reason": DISABLED_BY_PERSON}, "Disabled", DISABLED_BY_PERSON),
        (
            {"readable": False},
            "Dead",
            UNREADABLE,
        ),
    ],
)
def test_how_a_channel_does_and_why(changes: dict[str, Any], word: str, answer: str) -> None:
    found = channel(**changes)
    assert channel_state(found).word == word
    assert last_answer(found, None, NOW) == answer


def test_the_receivers_own_words() -> None:
    failing = channel(failures=1, last_error=REFUSED)
    same = Tally(0, 1, 410, REFUSED, "this hook\nwas removed")
    assert last_answer(failing, same, NOW) == "The receiver answered 410: this hook was removed"
    # The answer to another attempt does not belong to this error.
    other = replace(same, error="No listener.")
    assert last_answer(failing, other, NOW) == REFUSED
    assert last_answer(channel(), Tally(3, 0, 204), NOW) == "204, 8\N{NO-BREAK SPACE}min ago"


def test_long_words_of_a_receiver_are_cut() -> None:
    assert len(failure_text("It failed.", "x" * 500)) == len("It failed: ") + ANSWER_CHARACTERS + 1
    assert failure_text(None, None) == ""
    assert (
        failure_text("It answered 404 no_service.", "no_service") == "It answered 404 no_service."
    )


def test_dead_channels_come_first_and_next_to_the_list() -> None:
    dead = channel(id=uuid.UUID(int=1), name="z-old", failures=4, last_error=REFUSED)
    off = channel(id=uuid.UUID(int=2), name="b", enabled=False, disabled_reason=DISABLED_BY_PERSON)
    page = page_of(channel(), off, dead)
    named = [texts(line)[1] for line in page.table.lines]
    assert [text.partition("Webhook")[0] for text in named] == ["z-old", "ops", "b"]
    assert page.heading == "The channel z-old is dead: it delivers no messages"
    assert [text for _, text in page.states] == ["1 dead", "1 alive", "1 disabled"]
    assert page.chosen is not None
    assert page.chosen.name == "z-old"
    assert page.chosen.why == f"{REFUSED}, 4 times in a row"
    assert not page.selected


def test_says_how_many_hear() -> None:
    one = page_of(channel())
    assert one.heading == "1\N{NO-BREAK SPACE}channel receives incidents"
    off = channel(enabled=False, disabled_reason=DISABLED_BY_PERSON)
    assert page_of(off).heading == "No messages are sent: no channel is enabled"
    assert channels_title([off]) == "No channel is enabled"
    two = [channel(failures=3), channel(readable=False)]
    assert page_of(*two).heading == "2 channels are dead: they deliver no messages"


def test_without_a_channel_it_is_a_form_of_all_kinds() -> None:
    page = page_of()
    assert page.table.lines == []
    assert page.form.id is None
    kinds = [kind.name for kind in page.form.kinds]
    assert "webhook" in kinds
    assert "apprise" not in kinds
    assert "apprise" in [kind.name for kind in page_of(apprise=True).form.kinds]


def test_a_channel_that_was_asked_for_has_its_own_kind_only() -> None:
    selective = channel(
        audience="owner",
        selector=Selector(jobs=("llama-*",), labels={"project": "vision"}, importance=("high",)),
    )
    page = page_of(selective, selected=selective)
    assert page.title == "Channel ops: alive"
    assert page.selected
    assert [kind.name for kind in page.form.kinds] == ["webhook"]
    about = "Webhook · the job's owner · llama-*, project=vision, high importance"
    assert f"ops{about}" in texts(page.table.lines[0])[1]
    values = {item.path: item.value or item.chosen for item in page.form.selector}
    assert values["selector.jobs"] == "llama-*"
    assert values["selector.importance"] == ("high",)


def test_adding_one_shows_no_other() -> None:
    page = page_of(channel(), adding=True)
    assert page.chosen is None
    assert page.form.id is None
    assert page.title == "Add a channel"


def test_undelivered_messages_are_listed() -> None:
    waiting = undelivered("waiting", next_attempt_at=NOW + timedelta(minutes=3))
    failed = undelivered("failed", overtaken=True, can_replay=False)
    fresh = undelivered("waiting", attempt=0, error=None, answer=None, next_attempt_at=NOW)
    page = page_of(channel(), lost=([waiting, failed, fresh], 3))
    assert page.lost_title == "Messages: 1 did not arrive, 2 pending"
    assert [texts(line)[2] for line in page.lost.lines] == [
        "The receiver answered 503: maintenancenext try in 3\N{NO-BREAK SPACE}min",
        "The receiver answered 503: maintenance. A later message was sent.",
        "not tried yetnext try is due",
    ]
    assert [texts(line)[4] for line in page.lost.lines] == ["Send again", "", "Send again"]


def test_says_when_all_arrived_and_when_not_all_are_listed() -> None:
    assert page_of(channel()).lost_title == "Every message of the last 7 days arrived"
    many = page_of(channel(), lost=([undelivered("failed")], 1200))
    assert many.lost_title == "Messages: 1 did not arrive; the newest 1 of 1,200"


def test_the_version_changes_with_what_happens() -> None:
    before = page_of(channel()).version
    assert page_of(channel()).version == before
    assert page_of(channel(failures=1)).version != before
    assert page_of(channel(), lost=([undelivered("failed")], 1)).version != before


def test_the_form_has_the_limit_of_the_channel_or_the_usual_one() -> None:
    assert page_of(channel(rate_limit=25)).form.rate_limit == 25
    assert page_of().form.rate_limit == RATE_LIMIT
