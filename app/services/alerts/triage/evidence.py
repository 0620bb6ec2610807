"""What the hardware team gets of an incident: what was measured, seen and done, with a picture."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from app.alerts.incidents import INCIDENT
from app.alerts.machines.cordon import cordon_commands
from app.alerts.machines.inside import machine_of, node_of
from app.analysis.report.heatmaps import mean_heatmap
from app.db.models.sessions import StoredReport
from app.db.reports import read_document, read_heatmaps
from app.services.alerts.views import incident_life

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from app.db.unit_of_work import Reads
    from app.services.alerts.views import IncidentLife

# A report with every figure of a large job is left to its own page.
MAX_REPORT: Final = 16 * 1024 * 1024
# More workers than these are in the report; the slowest are here.
MAX_WORKERS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Evidence:
    """An incident with its proof."""

    life: IncidentLife
    host: str  # empty where none is at fault, or none is recorded
    # sequence of pairs of str: schedulers, and how each takes the host out
    commands: Sequence[tuple[str, str]]
    guessed: bool  # whether the host's name may be that of a container; then there are none
    # (dp, pp): of the latest session that shows it; None where its report is gone or has no
    # verdict
    heatmap: NDArray[np.float32] | None
    picture: bytes | None  # the same as a PNG
    report: bytes | None  # the report as JSON; None also where it is too large to send along


def evidence_of(tx: Reads, incident_id: uuid.UUID, *, with_report: bool = False) -> Evidence:
    """Return the proof of an incident.

    Parameters
    ----------
    with_report : bool
        Whether the report is to be read as well.

    Raises
    ------
    NotFoundError
    """
    life = incident_life(tx, incident_id)
    incident = life.view.row.incident
    facts, host = incident.facts, machine_of(incident)
    heatmap, picture, report = None, None, None
    title = f"{life.view.row.job}, session {facts.number}: slowdown of workers" if facts else ""
    stored = None if facts is None else tx.session.get(StoredReport, facts.session)
    if facts is not None and stored is not None and facts.slowdown is not None:
        if stored.heatmap_blob is not None:
            from app.alerts.picture import heatmap_png  # noqa: PLC0415 - rarely drawn

            heatmap = mean_heatmap(read_heatmaps(tx, stored.heatmap_blob))
            picture = heatmap_png(heatmap, title)
        if with_report:
            document = read_document(tx, stored)
            report = document if len(document) <= MAX_REPORT else None
    return Evidence(
        life=life,
        host=host,
        commands=cordon_commands(node_of(incident), f"Paceline incident {incident.id}"),
        guessed=facts is not None and facts.guesses(host),
        heatmap=heatmap,
        picture=picture,
        report=report,
    )


def evidence_zip(found: Evidence, words: str) -> bytes:
    """Return everything as one archive of a bounded size."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("incident.txt", words)
        archive.writestr("incident.json", json.dumps(_document(found), indent=1, default=str))
        if found.commands:
            lines = [f"# {scheduler}\n{command}\n" for scheduler, command in found.commands]
            archive.writestr("cordon.txt", "\n".join(lines))
        if found.picture is not None:
            # A PNG is compressed already.
            archive.writestr("heatmap.png", found.picture, zipfile.ZIP_STORED)
        if found.heatmap is not None:
            archive.writestr("workers.csv", _workers_csv(found.heatmap))
        if found.report is not None:
            archive.writestr("report.json", found.report)
    return buffer.getvalue()


def _document(found: Evidence) -> dict[str, Any]:
    """Return the numbers, as the API names them."""
    row = found.life.view.row
    return {
        "job": row.job,
        "host": found.host or None,
        "incident": INCIDENT.dump_python(row.incident, mode="json"),
        "assignee": row.assignee,
        "inside": [asdict(one) for one in row.inside],
        "events": [asdict(event) for event in found.life.view.events],
        "comments": [asdict(comment) for comment in found.life.view.comments],
        "commands": dict(found.commands),
    }


def _workers_csv(heatmap: NDArray[np.float32]) -> str:
    """Return the slowdowns of the workers, the slowest first; empty cells sent nothing."""
    import numpy as np  # noqa: PLC0415 - what the archive alone needs

    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("dp", "pp", "slowdown"))
    pp = heatmap.shape[1]
    order = np.argsort(-np.nan_to_num(heatmap, nan=-1.0), axis=None, kind="stable")
    for cell in order[:MAX_WORKERS].tolist():
        value = float(heatmap[cell // pp, cell % pp])
        lines.writerow((cell // pp, cell % pp, f"{value:.6g}" if value == value else ""))  # noqa: PLR0124 - NaN
    return text.getvalue()
