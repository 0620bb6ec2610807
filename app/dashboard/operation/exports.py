"""The tables of what arrives, and of the installation, as CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from app.dashboard.ui.csv_text import Table
from app.services.ingest.guesses import GuessingJob
from app.services.ingest.read import IngestHealth, JobIntake, Lagging, OpenSession, Refusal
from app.services.installation.overview import Overview, Queue, TableSize
from app.services.installation.status import WorkerStatus
from app.services.usage.quotas import QUOTAS
from app.settings import Settings

# File name → what makes it of what arrives.
INGEST: Final[Mapping[str, Callable[[IngestHealth], Table]]] = {
    "open": lambda found: Table.of(OpenSession, found.open),
    "producers": lambda found: Table.of(Lagging, found.lagging),
    "refused": lambda found: Table.of(Refusal, found.refusals),
    "jobs": lambda found: Table.of(JobIntake, found.jobs),
    "guesses": lambda found: Table.of(GuessingJob, found.guessing),
}


def _sessions(found: Overview, _settings: Settings) -> Table:
    return Table(("state", "sessions"), found.status.sessions.items())


def _quotas(found: Overview, settings: Settings) -> Table:
    return Table(
        ("project", "quota", "used", "limit"),
        (
            (project, quota.name, quota.used(use), quota.limit(settings))
            for project, use in found.uses.items()
            for quota in QUOTAS
        ),
    )


# File name → what makes it of an installation.
INSTALLATION: Final[Mapping[str, Callable[[Overview, Settings], Table]]] = {
    "queues": lambda found, _: Table.of(Queue, found.queues),
    "workers": lambda found, _: Table.of(WorkerStatus, found.status.workers),
    "storage": lambda found, _: Table.of(TableSize, found.tables),
    "sessions": _sessions,
    "quotas": _quotas,
}
