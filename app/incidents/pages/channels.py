"""The page of channels: health, settings, failed deliveries, and an incident's messages."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote

from markupsafe import Markup, escape

from app.incidents.channel_reads import DISABLED_BY_PERSON, ChannelView, Tally
from app.incidents.channel_settings import Undelivered
from app.incidents.channel_writes import MOST_MESSAGES, RATE_LIMIT
from app.incidents.channels.registry import KINDS
from app.incidents.delivery_reads import DeliveryRow
from app.incidents.message import view_url
from app.incidents.models.rules import Audience
from app.incidents.models.tables import DeliveryState
from app.incidents.pages.parts import AUDIENCES, dead_channels, failure_text
from app.incidents.routing import SELECTOR
from app.incidents.text import lines_of
from app.incidents.views import IncidentLife
from app.web import html, moments
from app.web.format import age, count, listing, plural
from app.web.forms import Field, fields_of
from app.web.parts import StateLabel
from app.web.tables import Drawn, Shown, Table, drawn


def health_table(
    channels: Sequence[ChannelView], tallies: Mapping[uuid.UUID, Tally], now: datetime
) -> Drawn:
    """Return the short table of channels, with their deliveries of the last 24 hours."""

    def name(channel: ChannelView) -> object:
        dead = bool(dead_channels([channel]))
        return html.glyph("fail", channel.name) if dead else channel.name

    return drawn(
        (
            Shown(
                "Channel",
                lambda channel: html.link(f"/channels/{channel.id}", name(channel), plain=True),
                of_cells="grow",
            ),
            *_counts(tallies, "num"),
            Shown(
                "Last answer",
                lambda channel: last_answer(channel, tallies.get(channel.id), now),
                of_cells="muted grow",
            ),
        ),
        channels,
        csv="/channels.csv",
    )


def _counts(
    tallies: Mapping[uuid.UUID, Tally], classes: str
) -> tuple[Shown[ChannelView], Shown[ChannelView], Shown[ChannelView]]:
    none = Tally(0, 0)
    return (
        Shown("Sent", lambda channel: tallies.get(channel.id, none).delivered, classes=classes),
        Shown("Waiting", lambda channel: channel.waiting, classes=classes),
        Shown("Failed", lambda channel: tallies.get(channel.id, none).failed, classes=classes),
    )


def last_answer(channel: ChannelView, tally: Tally | None, now: datetime) -> str:
    """Return the last answer of a channel's receiver, or the reason for a missing answer."""
    if not channel.readable:
        return "no available key decrypts its secrets"
    why = channel.last_error if channel.enabled else channel.disabled_reason or DISABLED_BY_PERSON
    if why:
        return failure_text(why, tally.answer if tally and tally.error == why else None)
    if channel.last_success_at is None:
        return "nothing sent yet"
    ago = f"{age((now - channel.last_success_at).total_seconds())} ago"
    status = tally.status if tally else None
    return ago if status is None else f"{status}, {ago}"


def channels_title(channels: Sequence[ChannelView]) -> str:
    """Return the title of the channels' table: a sentence on the health of all channels."""
    if not channels:
        return "There is no channel: no messages are sent"
    gone = dead_channels(channels)
    if len(gone) == 1:
        return f"The channel {gone[0].name} is dead"
    if gone:
        return f"{len(gone)} channels are dead"
    enabled = sum(channel.enabled for channel in channels)
    return f"{plural(enabled, 'channel')} in order" if enabled else "No channel is enabled"


DELIVERY_STATES: Final = {
    DeliveryState.WAITING: StateLabel("wait", "Waiting", 1),
    DeliveryState.SENDING: StateLabel("run", "Sending", 1),
    DeliveryState.DELIVERED: StateLabel("done", "Delivered", 2),
    DeliveryState.FAILED: StateLabel("fail", "Failed", 0),
    DeliveryState.SUPERSEDED: StateLabel("none", "Superseded", 3, quiet=True),
}


@dataclass(frozen=True, slots=True)
class MessageText:
    """The text of a message; `heading` and `note` tell whether the message was delivered."""

    heading: str
    note: str
    title: str
    summary: str
    fields: Sequence[tuple[str, str]]
    evidence: Sequence[str]
    view_url: str


def latest_message(life: IncidentLife) -> MessageText | None:
    """Return the text of the latest message about an incident."""
    for sent in life.deliveries:
        if sent.message is None:
            continue
        for alert in sent.message.alerts:
            if alert.incident == life.view.row.incident.id:
                lines = lines_of(alert, sent.message.at)
                heading, note = _delivery_status(sent.number, life.deliveries)
                return MessageText(
                    heading=heading,
                    note=note,
                    title=sent.message.title,
                    summary=lines.summary,
                    fields=lines.fields,
                    evidence=lines.evidence,
                    view_url=view_url("/", alert.facts, alert.hang)
                    if alert.facts or alert.hang
                    else f"/jobs/{quote(life.view.row.job, safe='')}",
                )
    return None


def _delivery_status(number: int, deliveries: Sequence[DeliveryRow]) -> tuple[str, str]:
    """Return heading and note of a message, according to the states of its deliveries."""
    by_state: dict[DeliveryState, list[str]] = {}
    for sent in deliveries:
        if sent.number == number:
            by_state.setdefault(sent.state, []).append(sent.channel)
    delivered = by_state.get(DeliveryState.DELIVERED)
    if delivered:
        to = f"To {listing(sorted(delivered))}; the same text to every channel"
        return "The message that was sent", f"{to}, with the heatmap where it can show one"
    underway = [
        name
        for state, names in by_state.items()
        if state in DeliveryState.UNDERWAY
        for name in names
    ]
    if underway:
        tried = f"Still trying: {listing(sorted(underway))}"
        return "A message that has not been delivered", tried
    failed = by_state.get(DeliveryState.FAILED)
    if failed:
        return "The undelivered message", f"Not delivered to {listing(sorted(failed))}"
    return "A superseded message", "A newer message was due before it was sent"


def deliveries_table(deliveries: Sequence[DeliveryRow], now: datetime, *, csv: str) -> Drawn:
    """Return the table of an incident's deliveries, with the answers of the receivers."""
    return drawn(
        (
            Shown("Channel", lambda sent: sent.channel, of_cells="grow"),
            Shown("State", lambda sent: html.state(DELIVERY_STATES[sent.state]), of_cells="nowrap"),
            Shown(
                "Last answer",
                _answer,
                of_cells="grow muted",
                title=lambda sent: f"{sent.id}, {_attempts(sent)}",
            ),
            Shown(
                "When",
                lambda sent: moments.ago(sent.finished_at or sent.created_at, now),
                classes="num",
            ),
        ),
        deliveries,
        csv=csv,
        classes="plain deliveries",
    )


def _attempts(sent: DeliveryRow) -> str:
    return plural(sent.attempt, "try", "tries") if sent.attempt else "not tried yet"


def _answer(sent: DeliveryRow) -> object:
    words = failure_text(sent.error, sent.answer)
    status = "" if sent.error or sent.answer_status is None else str(sent.answer_status)
    answer = " ".join(filter(None, (status, words))) or _attempts(sent)
    if sent.state != DeliveryState.FAILED:
        return answer
    return html.join((answer, " ", _replay_button(sent.id)))


def _replay_button(delivery: uuid.UUID, label: str = "") -> Markup:
    return html.element(
        "button",
        "Send again",
        type="button",
        class_="link operates",
        data_replay=str(delivery),
        aria_label=label,
        disabled=True,
    )


def deliveries_title(deliveries: Sequence[DeliveryRow], channels: Sequence[ChannelView]) -> str:
    """Return the title of the deliveries' table: a sentence on failed deliveries."""
    failed = sorted({sent.channel for sent in deliveries if sent.state == DeliveryState.FAILED})
    if failed:
        return f"Not delivered to {listing(failed)}"
    if deliveries:
        return "Deliveries of its messages"
    if not any(channel.enabled for channel in channels):
        return "No message was sent: there is no channel"
    return "Nothing was sent yet"


DEAD: Final = StateLabel("fail", "Dead", 0)
RETRYING: Final = StateLabel("wait", "Retrying", 1)
ALIVE: Final = StateLabel("done", "Alive", 2)
UNUSED: Final = StateLabel("ok", "Not used yet", 2, quiet=True)
DISABLED: Final = StateLabel("silenced", "Disabled", 3, quiet=True)


@dataclass(frozen=True, slots=True)
class KindForm:
    """The fields of a kind of channel."""

    name: str
    title: str
    fields: Sequence[Field]


@dataclass(frozen=True, slots=True)
class ChannelForm:
    """The form of a channel; `id` is None for a new one."""

    id: uuid.UUID | None
    name: str
    audience: str
    audiences: Mapping[Audience, str]
    kinds: Sequence[KindForm]
    rate_limit: int
    most_messages: int
    selector: Sequence[Field]


@dataclass(frozen=True, slots=True)
class ChosenChannel:
    """The selected channel, shown next to the list of channels."""

    id: uuid.UUID
    name: str
    title: str
    state: StateLabel
    why: str
    enabled: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ChannelsPage:
    """The content of the page; `version` changes with all content except ages."""

    now: datetime
    title: str
    heading: str
    states: Sequence[tuple[StateLabel, str]]
    list_title: str
    table: Drawn
    selected: bool
    chosen: ChosenChannel | None
    form: ChannelForm
    lost_title: str
    lost: Drawn
    version: str


def channels_page(  # noqa: PLR0913 - all data of the page
    channels: Sequence[ChannelView],
    tallies: Mapping[uuid.UUID, Tally],
    lost: tuple[Sequence[Undelivered], int],
    now: datetime,
    *,
    selected: ChannelView | None,
    adding: bool,
    apprise: bool,
) -> ChannelsPage:
    """Return the page of channels.

    Parameters
    ----------
    lost : pair of sequence of Undelivered and int
        The newest undelivered messages, and the number of all.
    selected : ChannelView or None
        The channel in the address; without one the least healthy channel is shown.
    """
    channels = sorted(channels, key=lambda channel: (channel_state(channel).order, channel.name))
    chosen = None if adding else selected or next(iter(channels), None)
    counted = Counter(map(channel_state, channels))
    parts: list[object] = [
        (c.id, c.name, c.enabled, c.failures, c.last_error, c.last_success_at, c.waiting)
        for c in channels
    ]
    deliveries = [item.delivery for item in lost[0]]
    parts += [(delivery.id, delivery.state, delivery.attempt) for delivery in deliveries]
    kinds = [
        kind
        for kind in KINDS.values()
        if (chosen is None and (kind.name != "apprise" or apprise))
        or (chosen is not None and kind.name == chosen.kind)
    ]
    title = "Add a channel" if adding else f"Channels: {channels_title(channels)}"
    if selected is not None:
        title = f"Channel {selected.name}: {channel_state(selected).word.lower()}"
    selector = None if chosen is None else SELECTOR.dump_python(chosen.selector, mode="json")
    return ChannelsPage(
        now=now,
        title=title,
        heading=_heading(channels),
        states=[
            (state, f"{number} {state.word.lower()}")
            for state, number in sorted(counted.items(), key=lambda item: item[0].order)
        ],
        list_title=plural(len(channels), "channel") if channels else "No channel yet",
        table=drawn(
            _columns(tallies, now, chosen),
            channels,
            csv="/channels.csv",
            classes="inc channels",
            attributes=lambda channel: {"aria-selected": "true"} if channel == chosen else {},
        ),
        selected=adding or selected is not None,
        chosen=None if chosen is None else _chosen(chosen, tallies.get(chosen.id), now),
        form=ChannelForm(
            id=chosen.id if chosen else None,
            name=chosen.name if chosen else "",
            audience=chosen.audience if chosen else "on_call",
            audiences=AUDIENCES,
            kinds=[
                KindForm(
                    kind.name,
                    kind.title,
                    fields_of(
                        kind.config,
                        "config",
                        values=None if chosen is None else chosen.config,
                        secrets=kind.secrets,
                        stored=None if chosen is None else chosen.secrets,
                        prefix=f"{kind.name}-",
                    ),
                )
                for kind in kinds
            ],
            rate_limit=chosen.rate_limit if chosen else RATE_LIMIT,
            most_messages=MOST_MESSAGES,
            selector=fields_of(SELECTOR, "selector", values=selector),
        ),
        lost_title=_lost_title(*lost, selected),
        lost=drawn(
            _lost_columns(now),
            lost[0],
            csv="/channels-undelivered.csv" + (f"?channel={selected.id}" if selected else ""),
            classes="inc",
        ),
        version=uuid.uuid5(uuid.NAMESPACE_OID, repr(parts)).hex,
    )


def channel_state(channel: ChannelView) -> StateLabel:
    """Return the state of a channel as a label."""
    if dead_channels([channel]):
        return DEAD
    if not channel.enabled:
        return DISABLED
    if channel.failures:
        return RETRYING
    return UNUSED if channel.last_success_at is None else ALIVE


def kind_title(kind: str) -> str:
    """Return the title of a kind of channel."""
    return KINDS[kind].title if kind in KINDS else kind


def _heading(channels: Sequence[ChannelView]) -> str:
    gone = dead_channels(channels)
    if len(gone) == 1:
        return f"The channel {gone[0].name} is dead: it delivers no messages"
    if gone:
        return f"{len(gone)} channels are dead: they deliver no messages"
    heard = sum(channel.enabled for channel in channels)
    if not heard:
        return "No messages are sent: no channel is enabled"
    return f"{plural(heard, 'channel')} {'receives' if heard == 1 else 'receive'} incidents"


def _columns(
    tallies: Mapping[uuid.UUID, Tally], now: datetime, chosen: ChannelView | None
) -> tuple[Shown[ChannelView], ...]:
    def answer(channel: ChannelView) -> str:
        return last_answer(channel, tallies.get(channel.id), now)

    def name(channel: ChannelView) -> Markup:
        about = [kind_title(channel.kind), AUDIENCES[channel.audience], *_jobs(channel)]
        return html.join(
            (
                html.element(
                    "a",
                    channel.name,
                    href=f"/channels/{channel.id}",
                    aria_current="true" if channel == chosen else "",
                ),
                html.note(" · ".join(about)),
                html.narrow(answer(channel)),
                html.element("span", class_="result", id=f"result-{channel.id}", role="status"),
            )
        )

    def last_success(channel: ChannelView) -> Markup:
        at = channel.last_success_at
        return html.muted("none") if at is None else moments.ago(at, now)

    return (
        Shown("State", lambda channel: html.state(channel_state(channel))),
        Shown("Channel", name, of_cells="grow"),
        *_counts(tallies, "num opt"),
        Shown("Last answer", answer, classes="opt", of_cells="grow muted"),
        Shown("Last success", last_success, classes="num"),
        Shown(html.element("span", "Test", class_="vh"), _test_button, of_cells="num"),
    )


def _test_button(channel: ChannelView) -> Markup:
    return html.element(
        "button",
        "Test",
        type="button",
        class_="link operates",
        data_test=str(channel.id),
        data_result=f"result-{channel.id}",
        aria_label=f"Test {channel.name}",
        disabled=True,
    )


def _jobs(channel: ChannelView) -> list[str]:
    """Return the jobs that a channel selects as text; empty if it selects all jobs."""
    selector = channel.selector
    parts = [*selector.jobs, *(f"{name}={value}" for name, value in selector.labels.items())]
    if selector.importance:
        parts.append(f"{' or '.join(selector.importance)} importance")
    parts += [f"not {name}={value}" for name, value in selector.except_labels.items()]
    return [", ".join(parts)] if parts else []


def _chosen(channel: ChannelView, tally: Tally | None, now: datetime) -> ChosenChannel:
    answer = last_answer(channel, tally, now)
    times = f", {channel.failures} times in a row" if channel.failures > 1 else ""
    return ChosenChannel(
        id=channel.id,
        name=channel.name,
        title=f"{channel.name}: {kind_title(channel.kind)}",
        state=channel_state(channel),
        why=f"{answer}{times}" if channel.enabled and channel.last_error else answer,
        enabled=channel.enabled,
        created_at=channel.created_at,
    )


def _lost_title(listed: Sequence[Undelivered], total: int, selected: ChannelView | None) -> str:
    to = f" to {selected.name}" if selected else ""
    if not total:
        return f"Every message{to} of the last 7 days arrived"
    counted = Counter(item.delivery.state == DeliveryState.FAILED for item in listed)
    parts = [
        text
        for text in (
            f"{counted[True]} did not arrive" if counted[True] else "",
            f"{counted[False]} pending" if counted[False] else "",
        )
        if text
    ]
    text = f"Messages{to}: {', '.join(parts)}"
    return text if len(listed) >= total else f"{text}; the newest {len(listed)} of {count(total)}"


def _lost_columns(now: datetime) -> tuple[Shown[Undelivered], ...]:
    def message(item: Undelivered) -> Markup:
        sent = item.delivery
        title = sent.title or "its text is fixed when it is sent"
        job = html.join((sent.job, " ", html.muted(f"to {sent.channel}")))
        return job + html.note(title) + html.narrow(_lost_answer(item))

    def answer(item: Undelivered) -> Markup:
        at = item.delivery.next_attempt_at
        if at is None:
            return escape(_lost_answer(item))
        left_s = (at - now).total_seconds()
        due = f"next try in {age(left_s)}" if left_s > 0 else "next try is due"
        return html.join((_lost_answer(item), html.note(due)))

    def replay(item: Undelivered) -> Markup:
        sent = item.delivery
        label = f"Send again: the message of {sent.job} to {sent.channel}"
        return _replay_button(sent.id, label) if item.can_replay else html.NOTHING

    return (
        Shown("State", lambda item: html.state(DELIVERY_STATES[item.delivery.state])),
        Shown("Message", message, of_cells="grow"),
        Shown("Last answer", answer, classes="opt", of_cells="grow muted"),
        Shown("Since", lambda item: moments.ago(item.delivery.created_at, now), classes="num"),
        Shown(html.element("span", "Replay", class_="vh"), replay, of_cells="num said-here"),
    )


def _lost_answer(item: Undelivered) -> str:
    answer = failure_text(item.delivery.error, item.delivery.answer) or "not tried yet"
    if item.overtaken and item.delivery.state == DeliveryState.FAILED:
        return f"{answer.removesuffix('.')}. A later message was sent."
    return answer


def channels_csv(channels: Sequence[ChannelView], tallies: Mapping[uuid.UUID, Tally]) -> Table:
    """Return the table of channels, without their configurations, which hold secrets."""
    names = (
        *("id", "name", "kind", "audience", "enabled", "rate_limit", "disabled_reason"),
        *("failures", "last_error", "last_failure_at", "last_success_at", "waiting", "created_at"),
    )
    with_tallies = ((tallies.get(channel.id), channel) for channel in channels)
    return Table(
        (*names, "delivered_24h", "failed_24h"),
        (
            (
                *(getattr(channel, name) for name in names),
                *((tally.delivered, tally.failed) if tally else (0, 0)),
            )
            for tally, channel in with_tallies
        ),
    )
