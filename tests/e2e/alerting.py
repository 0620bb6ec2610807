"""Alerts on pages: a server whose alerts tests drive, and jobs that fire."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING

from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes
from tests.e2e.recorded import analyzed

if TYPE_CHECKING:
    import uuid

    from playwright.sync_api import Page

    from app.analysis.trace.model import Trace
    from tests.support.alerting import Alerting
    from tests.support.receiver import Receiver


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A server without workers, and shortcuts to its alerts."""

    url: str
    alerting: Alerting


@cache
def trace(seed: int, *, slow: bool) -> Trace:
    """Return a session of 2 × 2 workers on hosts, with or without a slow one."""
    job = JobModel(Sizes(dp=2, pp=2, tp=2), microbatches=6, steps=14, name="dense-34b")
    made = synthesize(job, [SlowWorker((1, 1), 2.0)] if slow else [], seed=seed).trace
    # The same machines in every session, because an incident has a place.
    hosts = {rank: f"node-{17 + rank // 4}" for rank in range(8)}
    return dataclasses.replace(made, meta=dataclasses.replace(made.meta, hosts=hosts))


def let_it_fire(place: Place, job: str = "dense-34b") -> uuid.UUID:
    """Analyze slow sessions of a job and send the messages; return the latest session."""
    analyzed(place.alerting.container, trace(1, slow=False), job)
    analyzed(place.alerting.container, trace(2, slow=True), job)
    latest = analyzed(place.alerting.container, trace(3, slow=True), job)
    place.alerting.pass_and_work()
    return latest.session


def link_of(receiver: Receiver, at: int = -1) -> str:
    """Return the link to the incident in a message."""
    return str(receiver.got[at].json["alerts"][0]["annotations"]["incident"])


def act(page: Page, label: str) -> None:
    """Click a button."""
    page.get_by_role("button", name=label, exact=True).click()
