"""`paceline pulse detect`: what is noticed in a recorded pulse."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.analysis.pulse.detector import Detector, Record
from app.analysis.pulse.notices import Notice, Stall
from app.analysis.pulse.parquet import PulseFile


def detect_file(path: Path, meta: Path | None, *, as_json: bool) -> None:
    """Print the notices of a file of pulses; rows that were left out are said on standard error.

    Raises
    ------
    InvalidPulseError
        The file holds no pulse.
    InvalidMetadataError
        The metadata cannot be read.
    """
    hosts = _hosts(meta) if meta else {}
    file, detector, record = PulseFile(path), Detector(hosts=hosts), Record()
    for rows in file.batches():
        record.take(detector.advance(rows))
    record.take(detector.finish())
    for code, number in sorted((file.counts + detector.gathering.counts).items()):
        what = "columns" if code == "pulse.unknown_column" else "rows"
        sys.stderr.write(f"{number} {what}: {code}\n")
    for rank, by_ns in sorted(detector.offsets.items()):
        where = f" ({hosts[rank]})" if rank in hosts else ""
        sys.stderr.write(f"The clock of rank {rank}{where} is {by_ns / 1e9:+.1f} s off\n")
    if as_json:
        document = {
            "notices": [_notice(notice) for notice in record.listed],
            "stalls": [asdict(stall) for stall in detector.stalls],
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _lines(record.listed, detector.stalls))


def _hosts(meta: Path) -> dict[int, str]:
    # Metadata need pydantic: a tenth of what small files take.
    from app.analysis.trace.metadata import load_metadata  # noqa: PLC0415 - see above
    from app.cli.files import read_metadata  # noqa: PLC0415

    return dict(load_metadata(read_metadata(meta)).hosts)


def _notice(notice: Notice) -> dict[str, Any]:
    document = asdict(notice)
    del document["number"]
    document["evidence"] = {
        key: value for key, value in document["evidence"].items() if value is not None
    }
    return document


def _lines(notices: tuple[Notice, ...], stalls: tuple[Stall, ...]) -> Iterator[str]:
    if not notices:
        yield "Nothing was noticed."
    for notice in notices:
        until = (
            f"until step {notice.cleared_step}" if notice.cleared_step is not None else "goes on"
        )
        yield f"{notice.kind.replace('_', ' ')}: {notice.evidence.sentence}"
        yield (
            f"  from step {notice.from_step}, noticed at step {notice.noticed_step}; {until}"
            f" (attempt {notice.attempt})"
        )
    if stalls:
        yield "Single long steps:"
    for stall in stalls:
        which = "on all ranks" if stall.lined_up else f"on ranks {', '.join(map(str, stall.ranks))}"
        regular = f", every {stall.period_steps:.0f} steps" if stall.period_steps else ""
        yield (
            f"  {stall.cause} {which}: {stall.steps} steps{regular}, "
            f"{stall.lost_ns / 1e9:.1f} s lost, the longest {stall.worst_factor:.1f}× as long"
        )
