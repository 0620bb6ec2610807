"""`paceline mitigate`: plan the work of a tensor-parallel group from its times."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.analysis.documents import UnreadableDocumentError, load_document
from app.analysis.json_text import to_json
from app.analysis.mitigation.tensor.advice import advise
from app.analysis.mitigation.tensor.document import (
    Alternative,
    Criterion,
    LossRisk,
    Method,
    MitigationDocument,
)
from app.cli.files import FileError, read_document
from app.errors import InvalidTensorError
from app.tensor.measured import unreadable
from app.tensor.spec import parse_problem

CRITERIA: Final = {Criterion.T_MIN: "T_min", Criterion.T_AVG: "T_avg", None: ""}
RISKS: Final = {
    LossRisk.NONE: "none",
    LossRisk.SMALL: "small",
    LossRisk.LARGE: "large",
    LossRisk.BEYOND_BUDGET: "beyond budget",
}


def mitigate_file(path: Path, *, as_json: bool) -> None:
    """Plan the tensor-parallel group of a file and print the advice."""
    document = advise(parse_problem(_read(path)))
    if as_json:
        sys.stdout.write(f"{to_json(document)}\n")
    else:
        show(document, Console())


def _read(path: Path) -> object:
    try:
        return load_document(read_document(path))
    except FileError as error:
        raise InvalidTensorError(error.message, code="tensor.not_readable") from error
    except UnreadableDocumentError as error:
        raise unreadable(error, str(path)) from error


def show(document: MitigationDocument, console: Console) -> None:
    """Print the advice, its alternatives and the work of each rank."""
    console.print(Text(_sentence(document), style="bold"), soft_wrap=True)
    if not document.costs_sampled:
        console.print(
            "No costs were sampled: sending columns is taken to be free.",
            highlight=False,
            soft_wrap=True,
        )
    console.print()
    console.print(_alternatives_table(document))
    if document.best.method is not Method.NONE:
        console.print()
        console.print(_ranks_table(document.best, document.columns))


def _sentence(document: MitigationDocument) -> str:
    best, slowest_s = document.best, document.slowest_time_s
    over = slowest_s / document.fastest_time_s
    if not document.stragglers:
        return f"No rank straggles: the slowest takes {over:.2f} × the fastest"
    who = ", ".join(str(rank) for rank in document.stragglers)
    ranks = f"Rank{'s' if len(document.stragglers) > 1 else ''} {who}"
    if best.method is Method.NONE:
        return f"{ranks}: nothing within the budget is faster than {_seconds(slowest_s)}"
    return (
        f"{ranks}, up to {over:.2f} × the fastest: {best.method.short}, "
        f"{_seconds(slowest_s)} → {_seconds(best.predicted_time_s)} a step, "
        f"{best.speedup:.2f} × as fast"
    )


def _seconds(time_s: float) -> str:
    return f"{time_s:.4g} s"


def _alternatives_table(document: MitigationDocument) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("Method")
    table.add_column("Down to")
    for name in ("Slowest rank", "Speed-up", "γ", "Migrated"):
        table.add_column(name, justify="right")
    table.add_column("Loss risk")
    for item in document.alternatives:
        chosen = item is document.best
        table.add_row(
            item.method.short,
            CRITERIA[item.criterion],
            _seconds(item.predicted_time_s),
            f"{item.speedup:.2f} ×",
            f"{item.gamma:.3f}",
            f"{item.migrated_columns:,}",
            RISKS[item.loss_risk],
            style="bold" if chosen else "dim" if not item.within_budget else None,
        )
    return table


def _ranks_table(best: Alternative, columns: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("Rank", "Now", "Then", "Kept", "Resized", "Migrated", "Received"):
        table.add_column(name, justify="right")
    table.add_column("To")
    for rank in best.ranks:
        table.add_row(
            str(rank.rank),
            _seconds(rank.time_s),
            _seconds(rank.predicted_time_s),
            f"{columns - rank.resized_columns - rank.migrated_columns:,}",
            f"{rank.resized_columns:,}",
            f"{rank.migrated_columns:,}",
            f"{rank.received_columns:,}",
            ", ".join(f"{to}: {count:,}" for to, count in rank.to.items()),
        )
    return table
