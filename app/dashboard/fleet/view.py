"""What the fleet page shows: sums over all jobs, and a page of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from app.analysis.diagnosis.causes.registry import KINDS, title_of
from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.wording import hours
from app.dashboard.alerts.parts import STATES
from app.dashboard.fleet.asked import FilterBar, FleetInAddress, filter_bar
from app.dashboard.fleet.tables import job_attributes, job_columns, silent_columns
from app.dashboard.look.address import Address
from app.dashboard.look.format import (
    count,
    heat_color,
    interval,
    percent,
    plural,
    rough_percent,
    sizes,
    times,
    worker,
)
from app.dashboard.look.parts import (
    SILENT_STATE,
    SLOW_STATE,
    Sparkline,
    StateLabel,
    job_state,
    sparkline,
)
from app.dashboard.look.ranges import Range, RangeChoices, range_choices
from app.dashboard.look.tables import Drawn, drawn, pager, sorted_by
from app.db.states import SessionState
from app.services.fleet.rows import FLEET

if TYPE_CHECKING:
    from app.analysis.report.verdict import Slowdown, VerdictCause
    from app.services.fleet.listing import FleetView, Group
    from app.services.fleet.rows import Standing
    from app.services.sessions.fleet import JobSummary
    from app.services.sessions.read import SessionRow

# A longer reason gives way to its code in a table, characters.
SHORT_REASON: Final = 60
# A job is worth naming in the heading when it loses this share of all that is lost.
NAMED_SHARE: Final = 0.3
# So many silent jobs are not folded.
SILENT_OPEN: Final = 10
EMPTY: Final = "The archive is empty"


@dataclass(frozen=True, slots=True)
class SessionLine:
    """One line of a table of jobs or of sessions."""

    state: StateLabel
    status: SessionState
    name: str
    url: str
    session_url: str
    number: int
    slowdown: float | None
    slowdown_text: str
    color: str
    interval: str
    published: str
    against: str
    lost_each_hour: float | None
    lost_each_hour_text: str
    cause: str
    cause_share: str
    where: str
    gpus: int
    sizes: str
    steps: int
    operations: int
    discrepancy: str
    received_at: datetime
    # the group by which the fleet page filters
    kind: str
    # that `where` begins with
    host: str = ""
    spark: Sparkline | None = None
    incident: StateLabel | None = None
    incident_url: str = ""
    # of the job: its owner, and the others
    owner: str = ""
    labels: str = ""

    @property
    def standing(self) -> StateLabel:
        """Return the state of its most pressing incident, or else its own."""
        return self.incident or self.state


@dataclass(frozen=True, slots=True)
class FleetPage:
    """The fleet page.

    `jobs` are those of this page with data in the chosen time; the silent ones count nowhere else.
    """

    now: datetime
    title: str
    heading: str
    states: tuple[tuple[StateLabel, str], ...]
    bar: FilterBar
    jobs: Drawn
    list_title: str
    nothing: str
    silent: Drawn
    silent_title: str
    silent_open: bool
    range: RangeChoices
    archived: bool


def fleet_page(found: FleetView, asked: FleetInAddress, about: Range) -> FleetPage:
    """Return the fleet page.

    Parameters
    ----------
    asked : FleetInAddress
        By which it was found.
    about : Range
        The chosen time.
    """
    groups = found.groups
    heard = [group for group in groups if group.heard]
    silent = sum(group.jobs for group in groups if not group.heard)
    words: Counter[StateLabel] = Counter()
    for group in heard:
        words[_standing_label(group)] += group.jobs
    states = [
        (state, f"{count(number)} {state.word.lower()}")
        for state, number in sorted(words.items(), key=lambda item: item[0].order)
    ]
    if silent:
        states.append((SILENT_STATE, f"{count(silent)} silent"))
    address, page, quiet = asked.address(about), found.page, found.silent
    shown, jobs = job_columns(found.now), sum(group.jobs for group in heard)
    return FleetPage(
        now=found.now,
        title=f"Fleet: {_short(heard, silent)}",
        heading=_heading(heard, about, silent=silent, archived=asked.archived),
        states=tuple(states),
        bar=filter_bar(asked, about, found),
        jobs=drawn(
            shown,
            map(job_line, page.rows),
            csv=Address("/fleet/jobs.csv", address.parameters).but(),
            classes="fleet jobs",
            headings=sorted_by(FLEET, shown, address),
            pager=pager(page, address),
            attributes=job_attributes,
        ),
        list_title=_list_title(found, jobs),
        nothing="" if page.rows else _nothing(found, jobs),
        silent=drawn(
            silent_columns(found.now),
            [replace(job_line(job), state=SILENT_STATE, kind="silent") for job in quiet.rows],
            csv=Address("/fleet/silent.csv", address.parameters).but(sort=None),
            classes="fleet silent",
            pager=pager(
                quiet,
                Address(address.path, {**address.parameters, "page": _number(page.number)}),
                "silent",
                "#silent",
            ),
            attributes=job_attributes,
        ),
        silent_title=_silent_title(found, silent, about),
        silent_open=silent <= SILENT_OPEN or asked.filtered.narrowed or quiet.number > 1,
        range=range_choices(about),
        archived=asked.archived,
    )


def _number(page: int) -> str:
    return str(page) if page > 1 else ""


def _standing_label(group: Group) -> StateLabel:
    if group.incident is not None:
        return STATES[group.incident]
    return job_state(group.state, slow=group.slow)


def _short(heard: Sequence[Group], silent: int) -> str:
    if heard:
        slow = sum(group.jobs for group in heard if group.slow)
        return f"{count(slow)} of {plural(sum(group.jobs for group in heard), 'job')} slow"
    return plural(silent, "silent job") if silent else "no job yet"


def _list_title(found: FleetView, jobs: int) -> str:
    matching = found.page.total
    of_all = "" if matching == jobs else f" of {count(jobs)}"
    if found.page.pages == 1:
        return f"{count(matching)}{of_all} {'job' if matching == 1 and not of_all else 'jobs'}"
    first, last = found.page.first, found.page.last
    found_ = "" if matching == jobs else " found"
    return f"Jobs {count(first)} to {count(last)} of {count(matching)}{found_}"


def _nothing(found: FleetView, jobs: int) -> str:
    if found.asked.narrowed and not found.silent.rows:
        return "No job matches."
    return "No job with data in this time matches." if jobs else ""


def _silent_title(found: FleetView, silent: int, about: Range) -> str:
    who = "1 job is silent" if silent == 1 else f"{count(silent)} jobs are silent"
    title = f"{who}: no session in {about.words}"
    matching = found.silent.total
    if matching != silent:
        title += f"; {count(matching)} {'matches' if matching == 1 else 'match'}"
    return title


def session_row(job: str, session: SessionRow, *, shown: SessionRow | None = None) -> SessionLine:
    """Return a line about a session.

    Parameters
    ----------
    job : str
        Name of its job.
    session : SessionRow
        The session whose state and age the line shows.
    shown : SessionRow, optional
        An earlier session whose numbers the line shows instead, because this one has none yet.
    """
    numbers = shown or session
    measured, verdict = numbers.headline, numbers.verdict
    slowdown = measured.slowdown if measured else None
    slow = (
        verdict is not None
        and slowdown is not None
        and (verdict.level == "slow" or slowdown >= STRAGGLING)
    )
    first = verdict.causes[0] if slow and verdict and verdict.causes else None
    if measured is None:
        first = _withheld(session)
    lost = numbers.world * measured.waste if measured else None
    published = verdict.published if measured and verdict else None
    state = job_state(session.state, slow=slow)
    return SessionLine(
        state=state,
        status=session.state,
        name=job,
        url=f"/jobs/{quote(job)}",
        session_url=f"/sessions/{session.id}",
        number=session.number,
        slowdown=slowdown,
        slowdown_text="none" if slowdown is None else times(slowdown),
        color="" if slowdown is None else heat_color(slowdown),
        interval=interval(*measured.ci95) if measured and measured.ci95 else "",
        published="" if published is None else times(published.slowdown),
        against=_against(measured),
        lost_each_hour=lost,
        lost_each_hour_text="" if lost is None else hours(lost),
        cause=title_of(first.cause) if first else _reason(session),
        cause_share=_share(first, measured) if measured or not first else _reason(session),
        where=_where(first) if first else "",
        gpus=session.world,
        sizes=sizes(session.dp, session.pp, session.tp, session.cp, session.vpp),
        steps=session.steps,
        operations=session.operations,
        discrepancy=percent(session.verdict.discrepancy) if session.verdict else "",
        received_at=session.received_at,
        host=_host(first) if first else "",
        kind="slow" if state is SLOW_STATE else "none" if slowdown is None else "quiet",
    )


def _withheld(session: SessionRow) -> VerdictCause | None:
    """Return the cause that is known although the verdict on S is withheld."""
    if session.state != SessionState.NO_VERDICT or session.verdict is None:
        return None
    return next((one for one in session.verdict.causes if one.cause != UNKNOWN), None)


def _share(cause: VerdictCause | None, measured: Slowdown | None) -> str:
    """Return what share a cause has, and that the slowdown is S where it is."""
    by_s = measured is not None and measured.kind is not HeadlineKind.CAUSES
    if cause is None:
        return "none, by S" if by_s else ""
    share = rough_percent(cause.contribution or 0.0)
    return f"{share}, by S" if by_s else share


def _against(measured: Slowdown | None) -> str:
    """Return what a slowdown is counted against."""
    if measured is None:
        return ""
    if measured.kind is HeadlineKind.CAUSES:
        return "against the job without its causes"
    return "published S: no cause explains it"


def job_line(job: Standing) -> SessionLine:
    """Return the line of a job."""
    row = session_row(job.name, job.latest, shown=job.told)
    labels = job.labels
    return replace(
        row,
        incident=None if job.incident is None else STATES[job.incident.state],
        incident_url="" if job.incident is None else f"/incidents/{job.incident.id}",
        spark=sparkline(job.slowdowns) if job.slowdowns else None,
        owner=labels.get("owner", ""),
        labels=" ".join(f"{name}={value}" for name, value in labels.items() if name != "owner"),
    )


def shown_session(job: JobSummary) -> SessionRow:
    """Return the session whose numbers stand for a job: the latest that is through."""
    through = [session for session in job.sessions if session.state not in SessionState.UNDERWAY]
    return through[-1] if through else job.latest


def _reason(session: SessionRow) -> str:
    if session.state == SessionState.NO_VERDICT and session.verdict is not None:
        return f"replay differs by {percent(session.verdict.discrepancy)}"
    if session.state in SessionState.UNREPORTED:
        reason = session.reason or ""
        return reason if 0 < len(reason) <= SHORT_REASON else session.reason_code or ""
    return ""


def _where(cause: VerdictCause) -> str:
    kind = KINDS.get(cause.cause)
    if kind is not None and kind.everywhere:
        return "all DP ranks"
    where, workers = cause.place, cause.place.workers
    if not workers:
        return "" if where.stage is None else f"stage {where.stage}"
    if where.ranks:
        return f"rank {where.ranks[0]}, worker {worker(*workers[0])}"
    if len(workers) > 1:
        return plural(len(workers), "worker")
    host = _host(cause)
    return f"{host}, worker {worker(*workers[0])}" if host else f"worker {worker(*workers[0])}"


def _host(cause: VerdictCause) -> str:
    """Return the host of a cause that names one worker, where it is known."""
    if len(cause.place.workers) != 1 or cause.place.ranks:
        return ""
    return cause.host or ""


def _heading(heard: Sequence[Group], about: Range, *, silent: int, archived: bool) -> str:
    if not heard:
        if archived:
            return "No job of the archive has sent a session in this time" if silent else EMPTY
        if silent or about.end is not None:
            return f"No job has sent a session in {about.words}"
        return "No job is connected yet: three lines, and its first verdict is here after 50 steps"
    jobs = sum(group.jobs for group in heard)
    told = sum(group.told for group in heard)
    if not told:
        return f"{plural(jobs, 'job')}, no verdict yet"
    lost, gpus = sum(group.lost for group in heard), sum(group.gpus for group in heard)
    sentence = (
        f"Stragglers cost {hours(lost)} GPU-hours each hour, "
        f"{rough_percent(lost / gpus)} of {plural(gpus, 'GPU')}"
    )
    first = max((group for group in heard if group.told), key=lambda group: group.most)
    if told > 1 and lost > 0 and first.most >= NAMED_SHARE * lost:
        sentence += f"; {first.job} alone loses {rough_percent(first.most / lost)} of them"
    return sentence
