"""The tables of jobs, of silent jobs, and of a job's sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from app.analysis.budget.parts import Part
from app.dashboard.ui import html, moments
from app.dashboard.ui.format import count, rough_percent
from app.dashboard.ui.tables import Shown
from app.services.fleet.standing import Loss

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from app.dashboard.fleet.lines import SessionLine
    from app.dashboard.fleet.query import FleetQuery
    from app.dashboard.ui.address import Address

_AGAINST: Final = "Against the job without its causes, else S"
_LOST: Final = "GPU-hours of all ranks: the largest loss, to stragglers, between steps or by all"
_STRAGGLERS: Final = "Share of the time that is lost to stragglers: to what not all workers lose"
_BETWEEN: Final = "Share of the time that is lost between steps, beyond what usually passes there"
_TOGETHER: Final = "Share of the time that is lost in steps in which all workers compute slower"
_TIME_LOST: Final = (
    "Shares of the time: to stragglers, between steps, as all workers compute slower"
)
_TIME_LOST_TO: Final = {
    Loss.STRAGGLERS: _STRAGGLERS,
    Loss.BETWEEN: _BETWEEN,
    Loss.TOGETHER: _TOGETHER,
}
# Colors of the same.
_LOSSES: Final = (Part.WAITING, Part.BETWEEN_STEPS_ABOVE, Part.SLOW_TOGETHER)
# A bar of this many pixels is half of the time.
_BAR: Final = 32
_INTERVAL: Final = "95\N{NO-BREAK SPACE}% interval"
_SIZES: Final = "DP\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}PP\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}TP"
_PICK_ALL: Final = Markup(
    '<input class="operates" type="checkbox" data-pick-all '
    'aria-label="Select all on this page" disabled>'
)
_PICK: Final = Markup('<span class="vh">Select</span>')


def session_columns(now: datetime) -> tuple[Shown[SessionLine], ...]:
    """Return the columns of a job's sessions."""
    return (
        Shown(
            "Session",
            lambda line: html.link(line.session_url, line.number),
            "number",
            of_cells="number",
        ),
        Shown("State", lambda line: html.state(line.state), "state"),
        Shown("Slowdown", _slowdown, "slowdown", "num", _AGAINST, title=lambda line: line.against),
        Shown(_INTERVAL, lambda line: line.interval, classes="opt w3", of_cells="nowrap muted"),
        Shown("Published S", lambda line: line.published, classes="num opt w3", of_cells="muted"),
        Shown("Lost each hour", lambda line: line.lost_each_hour_text, "lost", "num opt", _LOST),
        Shown("Stragglers", lambda line: line.stragglers, "stragglers", "num opt w3", _STRAGGLERS),
        Shown("Between steps", lambda line: line.between, "between", "num opt w3", _BETWEEN),
        Shown("All slow", lambda line: line.together, "together", "num opt w3", _TOGETHER),
        Shown("Cause", _cause, "", "opt cause", of_cells="ends", title=_cause_words),
        Shown("Where", _where, "", "opt w2 place-of", of_cells="muted ends", title=_place),
        Shown("Discrepancy", lambda line: line.discrepancy, "discrepancy", "num opt w2"),
        Shown("Steps", lambda line: count(line.steps), "steps", "num opt w2"),
        Shown("Operations", lambda line: count(line.operations), "operations", "num opt w2"),
        Shown("Received", lambda line: moments.ago(line.received_at, now), "received_at", "num"),
    )


def job_columns(
    now: datetime, query: FleetQuery, address: Address
) -> tuple[Shown[SessionLine], ...]:
    """Return the columns of jobs with data in the chosen time.

    Parameters
    ----------
    address : Address
        That of the list: labels lead to it with only the jobs that have them.
    """

    def job(line: SessionLine) -> Markup:
        return _job(line, _labels(line, query, address))

    return (
        Shown(_PICK_ALL, _pick, classes="pick"),
        Shown("State", _state, "rank"),
        Shown("Job", job, "name", of_cells="grow"),
        Shown("Lost each hour", lambda line: line.lost_each_hour_text, "lost", "num", _LOST),
        Shown("Slowdown", _job_slowdown, "slowdown", "num", _AGAINST),
        Shown(
            "Time lost",
            lambda line: _time_lost(line, query.loss),
            query.loss or "time",
            "opt w2",
            _TIME_LOST if query.loss is None else _TIME_LOST_TO[query.loss],
            "nowrap",
            _time_lost_words,
        ),
        Shown(_INTERVAL, lambda line: line.interval, classes="opt w2", of_cells="nowrap muted"),
        Shown("Sessions", lambda line: html.spark(line.spark), classes="opt w3"),
        Shown("Cause", _cause, "cause", "opt cause", of_cells="ends", title=_cause_words),
        Shown("Where", _where, "", "opt w2 place-of", of_cells="muted ends", title=_place),
        Shown(
            "Owner",
            lambda line: _owner(line, query, address),
            "owner",
            "opt w3",
            "The label of that name",
            of_cells="muted owner",
        ),
        Shown("GPUs", lambda line: count(line.gpus), "gpus", "num opt"),
        Shown(
            _SIZES,
            lambda line: line.short_sizes,
            classes="opt w2",
            of_cells="muted nowrap",
            title=lambda line: line.sizes,
        ),
        Shown("Data", lambda line: moments.ago(line.received_at, now), "received_at", "num opt"),
    )


def silent_columns(now: datetime) -> tuple[Shown[SessionLine], ...]:
    """Return the columns of jobs without data in the chosen time."""
    return (
        Shown(_PICK, _pick, classes="pick"),
        Shown("State", _state),
        Shown("Job", lambda line: html.link(line.url, line.name, title=line.name), of_cells="grow"),
        Shown(
            "Last session",
            lambda line: html.link(
                line.session_url, moments.ago(line.received_at, now), plain=True
            ),
            classes="num",
        ),
        Shown("Slowdown then", lambda line: line.slowdown_text, classes="num", of_cells="muted"),
        Shown(
            "Cause then",
            lambda line: line.cause,
            classes="opt w2 cause",
            of_cells="muted ends",
            title=lambda line: line.cause,
        ),
        Shown("Owner", lambda line: line.owner, classes="opt w3", of_cells="muted"),
        Shown("GPUs", lambda line: count(line.gpus), classes="num opt", of_cells="muted"),
        Shown("Parallelism", lambda line: line.sizes, classes="opt w2", of_cells="muted"),
    )


def row_attributes(line: SessionLine) -> Mapping[str, str]:
    """Return what scripts know of a row: its session, and that session's state."""
    return {"data-session": line.session_url.rsplit("/", 1)[1], "data-status": line.status}


def job_attributes(line: SessionLine) -> Mapping[str, str]:
    """Return the same of a row of a job, with the group that it is in."""
    return {"data-kind": line.kind, **row_attributes(line)}


def _pick(line: SessionLine) -> Markup:
    return Markup(
        '<input class="operates" type="checkbox" data-pick="{0}" aria-label="Select {0}" disabled>'
    ).format(line.name)


def _state(line: SessionLine) -> Markup:
    if line.incident is None:
        return html.state(line.state)
    return html.link(line.incident_url, html.state(line.incident), plain=True)


def _job(line: SessionLine, labels: Markup) -> Markup:
    written = (line.name, *(f"{name}={value}" for name, value in line.labels.items()))
    return (
        html.link(line.url, line.name, title=" ".join(written))
        + html.narrow(line.cause, line.where)
        + labels
    )


def _labels(line: SessionLine, query: FleetQuery, address: Address) -> Markup:
    """Return the labels of a job where the list prints them; each leads to those that have it."""
    if not query.labels or not line.labels:
        return html.NOTHING
    written = [f"{name}={value}" for name, value in line.labels.items()]
    chips = (
        html.element(
            "a",
            text,
            class_="chip",
            href=address.but(label=None if text == query.filtered.label else text),
            aria_current="true" if text == query.filtered.label else "",
        )
        for text in written
    )
    return html.element("span", html.join(chips), class_="chips")


def _owner(line: SessionLine, query: FleetQuery, address: Address) -> Markup:
    if not line.owner:
        return html.NOTHING
    chosen = line.owner == query.filtered.owner
    return html.link(
        address.but(owner=None if chosen else line.owner),
        line.owner,
        plain=True,
        title="All owners" if chosen else f"Only jobs of {line.owner}",
    )


def _slowdown(line: SessionLine) -> Markup:
    return html.swatch(line.color) + line.slowdown_text


def _time_lost(line: SessionLine, loss: Loss | None) -> Markup:
    """Return a bar of what is lost, and how much that is, or what is lost to one kind."""
    losses = line.losses
    if losses is None:
        return html.NOTHING
    rects, begin = [], 0.0
    shares = (losses.stragglers, losses.between, losses.together)
    told = losses.lost if loss is None else shares[tuple(Loss).index(loss)]
    for part, share in zip(_LOSSES, shares, strict=True):
        width = max(min(2 * _BAR * share, _BAR - begin), 0.0)
        rects.append(
            Markup('<rect class="p-{}" x="{:.1f}" width="{:.1f}" height="8"/>').format(
                part, begin, width
            )
        )
        begin += width
    bar = Markup(
        '<svg viewBox="0 0 {0} 8" width="{0}" height="8" aria-hidden="true">'
        '<rect class="track" width="{0}" height="8"/>{1}</svg> '
    ).format(_BAR, html.join(rects))
    return bar + rough_percent(told)


def _time_lost_words(line: SessionLine) -> str:
    if line.losses is None:
        return ""
    return (
        f"{line.stragglers} to stragglers, {line.between} between steps, {line.together} as all "
        "workers compute slower"
    )


def _job_slowdown(line: SessionLine) -> Markup:
    against = f", {line.against}; S {line.published}" if line.against else ""
    return html.link(
        line.session_url, _slowdown(line), plain=True, title=f"Session {line.number}{against}"
    )


def _cause(line: SessionLine) -> Markup:
    share = (" ", html.muted(line.cause_share)) if line.cause_share else ()
    return html.join((line.cause, *share))


def _cause_words(line: SessionLine) -> str:
    return " ".join(filter(None, (line.cause, line.cause_share)))


def _place(line: SessionLine) -> str:
    return line.where


def _where(line: SessionLine) -> Markup:
    return html.where(line.where, line.host)
