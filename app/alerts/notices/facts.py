"""A notice of the pulse as rules and messages see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.pulse.notices import NoticeKind
from app.analysis.wording import gpu_time, percent

# What an incident of each kind is called.
TITLES: Final[Mapping[NoticeKind, str]] = {
    NoticeKind.SLOW_RANK: "Slow rank",
    NoticeKind.SLOW_JOB: "Slow steps",
    NoticeKind.SPELLS: "Slow in spells",
    NoticeKind.DRIFT: "Slower and slower",
    NoticeKind.HANG: "Hang",
    NoticeKind.SILENT: "Silent ranks",
}
# What stands still fires at once: no session could be recorded of it.
STANDING_STILL: Final = (NoticeKind.HANG, NoticeKind.SILENT)
# A notice of a pulse that sends nothing any more is over after so long; one that stands still
# has nothing to send but beats.
UNHEARD: Final = timedelta(hours=1)
UNHEARD_STILL: Final = timedelta(days=1)
# What an end brought is known after a few steps. A resolved message waits for it for this time, or
# for this number of steps where they take longer.
MEASURED_WITHIN: Final = timedelta(seconds=30)
_MEASURED_STEPS: Final = 10
_MEASURED_AT_LAST: Final = timedelta(minutes=5)
# A place names this number of ranks.
_NAMED: Final = 4


class Outcome(StrEnum):
    """What a session says of a notice, or that none does."""

    CONFIRMED = "confirmed"  # it is slow, by a cause at the place of the notice or by none
    EXPLAINED = "explained"  # it is slow, by a cause elsewhere
    CLEARED = "cleared"  # it is as fast as the job was before
    UNCONFIRMED = "unconfirmed"  # none came in time that could tell


@dataclass(frozen=True, slots=True)
class NoticeFacts:
    """A notice.

    Parameters
    ----------
    attempt, number : int
        Its identity within the job.
    fires_at : datetime
        When it fires without a session.
    heard_at : datetime
        When rows of the pulse were read last.
    asked : bool
        Whether a session was asked for.
    outcome : Outcome or None
        None as long as a session may still come.
    session, session_id : int, UUID or None
        Number and id of the session that says it.
    cause : str
        What that session names; empty where it names none.
    baseline_s, step_s, after_s : float or None
        How long a step took before, while it goes on, and since it is over, seconds.
    gpu_hours : float
        What it has cost.
    job_ranks : int
        Ranks of the job that send.
    """

    attempt: int
    number: int
    kind: NoticeKind
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    factor: float | None
    from_step: int
    noticed_at: datetime
    fires_at: datetime
    cleared_at: datetime | None
    heard_at: datetime
    sentence: str
    asked: bool = False
    outcome: Outcome | None = None
    session: int | None = None
    session_id: UUID | None = None
    cause: str = ""
    baseline_s: float | None = None
    step_s: float | None = None
    after_s: float | None = None
    gpu_hours: float = 0.0
    job_ranks: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """Return its identity."""
        return self.attempt, self.number

    @property
    def place(self) -> str:
        """Return the host, or the ranks, that it blames; empty where it blames none."""
        if not self.ranks or self.stands_still:
            return ""
        if len(self.hosts) == 1:
            return self.hosts[0]
        more = "…" if len(self.ranks) > _NAMED else ""
        shown = ", ".join(map(str, self.ranks[:_NAMED])) + more
        return f"{'rank' if len(self.ranks) == 1 else 'ranks'} {shown}"

    @property
    def stands_still(self) -> bool:
        """Return whether no step ends."""
        return self.kind in STANDING_STILL

    @property
    def unheard_at(self) -> datetime:
        """Return when it is over if nothing more is heard."""
        return self.heard_at + (UNHEARD_STILL if self.stands_still else UNHEARD)

    def is_going_on(self, now: datetime) -> bool:
        """Return whether the pulse still shows it."""
        return self.cleared_at is None and now < self.unheard_at

    @property
    def measured_at(self) -> datetime | None:
        """Return until when steps are waited for that say what its end brought; None: for none.

        Of an attempt that another one followed no more steps come.
        """
        if self.step_s is None or self.after_s is not None or self.stands_still:
            return None
        if self.cleared_at is None or self.heard_at < self.cleared_at:
            return None
        steps = timedelta(seconds=_MEASURED_STEPS * self.step_s)
        return self.cleared_at + min(max(MEASURED_WITHIN, steps), _MEASURED_AT_LAST)

    @property
    def lost_each_hour(self) -> float | None:
        """Return the GPU-hours that it costs in each hour; None where that is not known."""
        if self.stands_still:
            return float(self.job_ranks) or None
        if self.step_s is None or self.baseline_s is None or not self.job_ranks:
            return None
        return max(0.0, 1 - self.baseline_s / self.step_s) * self.job_ranks

    @property
    def realized(self) -> float | None:
        """Return the share of a step that is saved since it is over; None where not known."""
        if self.after_s is None or not self.step_s:
            return None
        return 1 - self.after_s / self.step_s

    @property
    def checked(self) -> str:
        """Return what a session says of it, in words."""
        if self.stands_still:
            return "no session can be recorded"
        if self.outcome is None:
            return "a session was asked for" if self.asked else "no session was asked for"
        named = f": {title_of(self.cause).lower()}" if self.cause else ", and names no cause"
        words = {
            Outcome.CONFIRMED: f"session {self.session} confirms it{named}",
            Outcome.EXPLAINED: f"session {self.session} explains it{named}",
            Outcome.CLEARED: f"session {self.session} is as fast as before",
            Outcome.UNCONFIRMED: "no session confirmed it",
        }
        return words[self.outcome]

    def ended(self, predicted: float | None) -> str:
        """Return that it is over, what it cost, and what its end brought.

        Parameters
        ----------
        predicted : float or None
            The share of a step that the best fix was to save.
        """
        words = f"the pulse is as before, after {gpu_time(self.gpu_hours)}"
        if self.realized is None or self.cleared_at is None:
            return words
        since = f"since {self.cleared_at:%H:%M} UTC a step takes {signed(-self.realized)}"
        if predicted is not None:
            return f"{words}; predicted {signed(-predicted)}, {since}"
        return f"{words}; {since}"


def signed(share: float) -> str:
    """Return a share with its sign: what is saved is negative."""
    text = percent(abs(share))
    sign = "\N{MINUS SIGN}" if share < 0 else "+"
    return text if text == percent(0.0) else f"{sign}{text}"
