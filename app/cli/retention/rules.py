"""`paceline retention`: ask a server what it keeps, change that, or do what the sweeper does."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from app.cli.retention.installation import opened_also_embedded
from app.cli.server import Server
from app.services.retention.rules import keep_to_rules_now
from app.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

PATH: Final = "/api/v1/retention"
# In place of a number: nothing goes for that reason.
ALL: Final = "all"


def show(*, server: str) -> None:
    """Print what there is of each kind and how much of it is kept."""
    with Server(server) as api:
        _print(api.get(PATH))


def change(kind: str, days: str | None, size: str | None, *, server: str) -> None:
    """Change how much of a kind is kept, and print what is kept then."""
    changed = {"days": days, "bytes": size}
    with Server(server) as api:
        rules = api.get(PATH)["rules"]
        if kind not in rules:
            raise typer.BadParameter(f"the kinds are {', '.join(rules)}")
        rules[kind] |= {name: _number(name, text) for name, text in changed.items() if text}
        _print(api.exchange("PUT", PATH, rules))


def run() -> None:
    """Take away what is over the rules of all projects, and print how much that was."""
    with opened_also_embedded(Settings(), "retention") as container:
        removed = keep_to_rules_now(container)
    sys.stdout.write(f"removed: {removed}\n")


def _number(name: str, text: str) -> float | None:
    if text == ALL:
        return None
    try:
        # Parts of a day where a kind allows them: the server says.
        return int(text) if text.isdecimal() or name == "bytes" else float(text)
    except ValueError as error:
        raise typer.BadParameter(f"--{name} is a number, or {ALL}") from error


def _print(state: Mapping[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("Kind")
    for column in ("There", "Bytes", "Oldest", "Days kept", "Bytes kept"):
        table.add_column(column, justify="right")
    for kind, keep in state["rules"].items():
        use = state["uses"][kind]
        table.add_row(
            kind,
            f"{use['count']:,}",
            f"{use['bytes']:,}",
            (use["oldest"] or "")[:10],
            _limit(keep["days"]),
            _limit(keep["bytes"]),
        )
    Console().print(table)


def _limit(limit: int | None) -> str:
    return ALL if limit is None else f"{limit:,}"
