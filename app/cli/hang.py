"""`paceline hang`: who is waited for in a job that stands still, from the files of its ranks."""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from app.analysis.hangs.said import Hang, Link
from app.analysis.hangs.verdict import judge_hang
from app.cli.files import reading
from app.cli.server import Server
from app.inputs.hangs.files import HangFile, job_of, read_hang_file

# Lines of the chain that are printed; JSON has all.
_MOST_LINKS: Final = 12
_MOST_RANKS: Final = 8
_MOST_FRAMES: Final = 8


def judge_files(paths: Sequence[Path], *, as_json: bool) -> None:
    """Print who is waited for, from dumps of flight recorders, of py-spy and of RAS.

    Raises
    ------
    InvalidTraceError
        A file is no whole dump, or nothing says of which rank it is.
    """
    hang = judge_hang(job_of(_read(paths)))
    if as_json:
        sys.stdout.write(json.dumps(asdict(hang), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _lines(hang))


def send_files(paths: Sequence[Path], job: str, server: str) -> None:
    """Send the files of a job that stands still to a server, and print where the verdict is.

    Raises
    ------
    ServerError
        It refuses them, or cannot be reached.
    """
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for path in _files(paths):
                with reading(path):
                    archive.add(path, str(path).lstrip("/").replace("..", "_"))
        with Server(server) as api:
            sent = api.send_hang(job, packed, lambda said: sys.stderr.write(f"{said}\n"))
    for name in sent.not_read:
        sys.stderr.write(f"{name}: not read\n")
    sys.stdout.write(f"{sent.sentence}\n{sent.url}\n")


def _read(paths: Sequence[Path]) -> Iterator[HangFile]:
    for path in _files(paths):
        with reading(path):
            body = path.read_bytes()
        found = read_hang_file(str(path), body)
        if found is None:
            sys.stderr.write(
                f"{path}: not read: neither a flight recorder's dump nor py-spy's nor ncclras's\n"
            )
        else:
            yield found


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.iterdir() if file.is_file())
        else:
            yield path


def _lines(hang: Hang) -> Iterator[str]:
    yield hang.sentence
    if hang.culprits:
        yield f"Confidence {hang.confidence:.0%}. {hang.remedy}"
    else:
        yield hang.remedy
    for culprit in hang.culprits:
        at = f" on {culprit.place}" if culprit.place else ""
        yield f"  rank {culprit.rank}{at}  {culprit.kind.replace('_', ' ')}  {culprit.evidence}"
        for frame in culprit.stack[:_MOST_FRAMES]:
            yield f"      {frame.function}  {frame.file}:{frame.line}"
    if hang.chain:
        yield "Who waits for whom, the nearest first:"
        yield from map(_link, hang.chain[:_MOST_LINKS])
        if len(hang.chain) > _MOST_LINKS:
            yield f"  and {len(hang.chain) - _MOST_LINKS} more (--json has all)"
    yield from hang.unknown


def _link(link: Link) -> str:
    return f"  {_few(link.waiting)} for {_few(link.waits_for)}: {link.operation}"


def _few(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:_MOST_RANKS]))
    return f"{named} and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else named
