"""The tables of a hang as files, and all of it as one archive."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from app.analysis.hangs.document import HangDocument, ranks_text
from app.analysis.json_text import to_json
from app.dashboard.hangs.view import heading_of, steps_of
from app.dashboard.ui.csv_text import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.services.hangs.read import HangRow


def ranks_csv(document: HangDocument) -> Table:
    """Return every rank: where it is, what it waits in, since when."""
    blamed = {one.rank: one.kind for one in document.verdict.culprits}
    header = ("rank", "host", "gpu", "culprit", "known", "waits_in", "since_ns")
    return Table(
        header,
        (
            (
                one.rank, one.host, one.gpu, blamed.get(one.rank), one.known, one.waits_in,
                one.since_ns,
            )
            for one in document.ranks
        ),
    )  # fmt: skip


def chain_csv(document: HangDocument) -> Table:
    """Return who waits for whom, the nearest to the culprits first."""
    header = ("distance", "operation", "waiting", "waits_for")
    return Table(
        header,
        (
            (one.distance, one.operation, _spans(one.waiting), _spans(one.waits_for))
            for one in document.verdict.chain
        ),
    )


def stacks_csv(document: HangDocument) -> Table:
    """Return every stack, a frame a row, the innermost first."""
    header = ("ranks", "stuck", "frame", "function", "file", "line")
    return Table(
        header,
        (
            (_spans(one.ranks), one.stuck, number, frame.function, frame.file, frame.line)
            for one in document.stacks
            for number, frame in enumerate(one.frames)
        ),
    )


FILES: Final[Mapping[str, Callable[[HangDocument], Table]]] = {
    "ranks": ranks_csv,
    "chain": chain_csv,
    "stacks": stacks_csv,
}


def hangs_csv(rows: Sequence[HangRow]) -> Table:
    """Return hangs of a job, the latest first."""
    header = (
        "hang", "received_at", "over_at", "kind", "ranks", "waiting", "culprits", "confidence",
        "gpu_hours", "sentence",
    )  # fmt: skip
    return Table(
        header,
        (
            (
                one.id, one.created_at, one.over_at, one.kind, one.ranks, one.waiting,
                one.culprits, one.confidence, one.gpu_hours, one.sentence,
            )
            for one in rows
        ),
    )  # fmt: skip


def evidence_pack(row: HangRow, document: HangDocument) -> bytes:
    """Return everything about a hang as one archive."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("hang.txt", hang_text(row, document))
        archive.writestr("hang.json", to_json(document))
        for name, make in FILES.items():
            archive.writestr(f"{name}.csv", make(document).text())
    return packed.getvalue()


def hang_text(row: HangRow, document: HangDocument) -> str:
    """Return a hang in words, for a ticket."""
    hang = document.verdict
    lines = [f"{row.job}: {heading_of(hang)}", "", hang.sentence]
    lines += [
        f"- rank {one.rank}{f' on {one.place}' if one.place else ''} {one.evidence}"
        for one in hang.culprits
    ]
    for stack in document.stacks:
        if stack.stuck:
            lines += ["", f"Stack of {_spans(stack.ranks)}, innermost first:"]
            lines += [f"  {one.function}  {one.file}:{one.line}" for one in stack.frames]
    lines += ["", "What to do:", *(f"{n}. {step}" for n, step in enumerate(steps_of(document), 1))]
    if hang.unknown:
        lines += ["", *hang.unknown]
    lines += ["", f"Received {row.created_at:%Y-%m-%d %H:%M} UTC"]
    if row.over_at is not None:
        lines.append(f"Over {row.over_at:%Y-%m-%d %H:%M} UTC, {row.gpu_hours:.1f} GPU-hours")
    return "\n".join(lines) + "\n"


def _spans(ranks: Sequence[int]) -> str:
    # Without a limit: this is the file with all of them.
    return ranks_text(ranks, len(ranks)).replace("–", "-")
