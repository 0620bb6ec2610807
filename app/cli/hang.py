"""`paceline hang`, `probe`, `mcp` and `pulse detect`: small commands with their output."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import httpx

import paceline_client.probe as probes
from app.analysis.hangs.findings import Hang, Link
from app.analysis.hangs.verdict import judge_hang
from app.analysis.pulse.detector import Detector, Record
from app.analysis.pulse.notices import Notice, Stall
from app.analysis.pulse.parquet import PulseFile
from app.cli.files import reading
from app.cli.server import Server, credentials, is_loopback
from app.errors import PacelineError
from app.hangs.files import HangFile, job_of, read_hang_file
from paceline_client.probe import lines_of

# Folders below a folder without files: torchrun writes RUN/attempt_0/RANK/stderr.log.
_DEEPEST: Final = 3
_ATTEMPT: Final = re.compile(r"attempt_\d{1,9}")
# Number of printed lines of the wait chain; JSON contains all.
_MOST_LINKS: Final = 12
_MOST_RANKS: Final = 8
_MOST_FRAMES: Final = 8


def judge_files(paths: Sequence[Path], *, as_json: bool) -> None:
    """Print the ranks that a hanging job waits for, from dumps of flight recorders, py-spy and RAS.

    Raises
    ------
    InvalidTraceError
        A file is not a whole dump, or its rank is unknown.
    """
    hang = judge_hang(job_of(read_files(paths)))
    if as_json:
        sys.stdout.write(json.dumps(asdict(hang), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _lines(hang))


def send_files(paths: Sequence[Path], job: str, server: str) -> None:
    """Send the files of a hanging job to a server, and print the address of the verdict.

    Raises
    ------
    ServerError
        The server refuses the files, or cannot be reached.
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


def read_files(paths: Sequence[Path]) -> Iterator[HangFile]:
    """Yield the parsed files at paths, and name those of unknown kinds on standard error."""
    for path in _files(paths):
        with reading(path):
            body = path.read_bytes()
        files = read_hang_file(str(path), body)
        yield from files
        if not files:
            sys.stderr.write(
                f"{path}: not read: neither a flight recorder's dump nor py-spy's nor ncclras's, "
                "nor a log of PyTorch's watchdog\n"
            )


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from _in_folder(path, _DEEPEST)
        else:
            yield path


def _in_folder(folder: Path, deepest: int) -> Iterator[Path]:
    """Yield the files of a folder or, if it has none, those of its folders.

    These are a folder for each host, or those of torchrun's ``--log-dir``, of which only the last
    attempt is read.
    """
    inside = sorted(folder.iterdir())
    files = [path for path in inside if path.is_file()]
    yield from files
    if files or not deepest:
        return
    folders = [path for path in inside if path.is_dir()]
    attempts = [path for path in folders if _ATTEMPT.fullmatch(path.name)]
    if attempts:
        folders = [max(attempts, key=lambda path: int(path.name.removeprefix("attempt_")))]
    for path in folders:
        yield from _in_folder(path, deepest - 1)


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


class ProbeFailedError(PacelineError):
    """A machine cannot be probed."""

    code = "probe.failed"


def probe_machine(server: str | None, *, seconds: float, busy: bool) -> None:
    """Print the measurements of this machine; with a server, also the server's verdict on them.

    Raises
    ------
    ProbeFailedError
        PyTorch is not installed, or a GPU is in use.
    ServerError
        The server refuses the probe, or cannot be reached.
    """
    try:
        measured = probes.probe(seconds=seconds, busy=busy)
    except probes.ProbeError as error:
        raise ProbeFailedError(f"{error}.") from error
    sys.stdout.writelines(f"{line}\n" for line in lines_of(measured))
    if server is not None:
        with Server(server) as api:
            said = api.exchange("POST", measured.path, measured.document())
        sys.stdout.write(f"{said['sentence']}\n{said['url']}\n")


class NoMcpError(PacelineError):
    """The optional package for this command is not installed."""

    code = "install.incomplete"


def serve_tools(server: str, *, may_acknowledge: bool) -> None:
    """Serve tools over standard input and output until standard input ends.

    Raises
    ------
    NoMcpError
    """
    try:
        from app.mcp.context import TIMEOUT  # noqa: PLC0415 - an extra
        from app.mcp.server import make_server  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        message = "This command needs an extra: install paceline[server,mcp]"
        raise NoMcpError(message) from error

    async def run() -> None:
        async with httpx.AsyncClient(
            base_url=server,
            headers=credentials(),
            timeout=TIMEOUT,
            # A proxy in the environment cannot reach a loopback address.
            trust_env=not is_loopback(server),
        ) as client:
            tools = make_server(client, server, may_acknowledge=may_acknowledge)
            await tools.run_stdio_async()

    asyncio.run(run())


def detect_file(path: Path, meta: Path | None, *, as_json: bool) -> None:
    """Print the notices of a pulse file; print the number of skipped rows on standard error.

    Raises
    ------
    InvalidPulseError
        The file contains no pulse.
    InvalidMetadataError
        The metadata cannot be read.
    """
    hosts: dict[int, str] = {}
    if meta:
        # Imported here, because pydantic takes a tenth of the time of a small file.
        from app.analysis.trace.metadata import load_metadata  # noqa: PLC0415 - see above
        from app.cli.files import read_metadata  # noqa: PLC0415

        hosts = dict(load_metadata(read_metadata(meta)).hosts)
    file, detector, record = PulseFile(path), Detector(hosts=hosts), Record()
    for rows in file.batches():
        record.take(detector.advance(rows))
    record.take(detector.finish())
    for code, number in sorted((file.counts + detector.assembler.counts).items()):
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
        sys.stdout.writelines(f"{line}\n" for line in _pulse_lines(record.listed, detector.stalls))


def _notice(notice: Notice) -> dict[str, Any]:
    document = asdict(notice)
    del document["number"]
    document["evidence"] = {
        key: value for key, value in document["evidence"].items() if value is not None
    }
    return document


def _pulse_lines(notices: tuple[Notice, ...], stalls: tuple[Stall, ...]) -> Iterator[str]:
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
