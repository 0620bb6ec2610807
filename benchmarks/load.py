"""The flush of a large job: every rank sends its chunks at once, while pages are read.

The installation is real: ``paceline serve`` with its embedded PostgreSQL, durable as in production,
and its workers, in separate processes. Prints for each version: seconds until every chunk was
acknowledged and until the session is sealed and reported; chunks a second, and chunks a processor
second of the server with its workers and PostgreSQL; answers 429; and response times of pages
meanwhile. Fails if a chunk was lost.

``--before DIR`` runs a checkout of another version first, in the same way: on a machine with other
load, only the ratio of the two versions is meaningful.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.encode import to_ndjson_gz
from app.analysis.trace.model import Sizes, Trace
from benchmarks.load_pulse import Load, measure_pulse
from benchmarks.support.installation import Line, processor_s, serving, settled

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_HERE: Final = Path(__file__).resolve().parent.parent
_STAGES: Final = 16
_STEPS_A_CHUNK: Final = 8
_RANKS_A_HOST: Final = 8
_JOB: Final = "load"
_PAGES: Final = ("/", f"/jobs/{_JOB}", "/hosts")
_PAGE_EVERY_S: Final = 0.1
_REPORT_S: Final = 900.0
_BUSY: Final = 429
_STORED: Final = (200, 202)


@dataclass(frozen=True, slots=True)
class Shares:
    """The bodies of each sender's chunks, in order."""

    bodies: tuple[tuple[bytes, ...], ...]
    operations: int

    @property
    def chunks(self) -> int:
        """Return the number of chunks of all senders."""
        return sum(map(len, self.bodies))


@dataclass(slots=True)
class Answers:
    """Answers of the server."""

    acknowledged: int = 0
    busy: int = 0
    pages_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Flush:
    """Figures of one version."""

    version: str
    chunks: int
    acknowledged_s: float
    reported_s: float
    processor_s: float
    answers: Answers
    taken: int
    state: str

    def lines(self) -> Iterator[str]:
        """Yield the figures as lines of text."""
        pages_ms = sorted(1e3 * seconds for seconds in self.answers.pages_s)
        p95_ms = pages_ms[int(0.95 * (len(pages_ms) - 1))] if pages_ms else float("nan")
        middle_ms = statistics.median(pages_ms) if pages_ms else float("nan")
        yield (
            f"{self.version}: {self.chunks:,} chunks acknowledged in {self.acknowledged_s:.1f} s, "
            f"{self.chunks / self.acknowledged_s:.0f} chunks/s, "
            f"{self.chunks / self.processor_s:.0f} chunks a processor-second of the server, "
            f"{self.answers.busy:,} answers 429"
        )
        yield (
            f"{self.version}: pages meanwhile {middle_ms:.0f} ms, p95 {p95_ms:.0f} ms "
            f"({len(pages_ms)} asked); {self.taken:,} chunks in the session, {self.state} after "
            f"{self.reported_s:.1f} s"
        )


def make_shares(senders: int, chunks: int) -> Shares:
    """Return the chunks of a synthetic job, for one sender a rank."""
    if senders % _STAGES:
        raise SystemExit(f"Senders are a multiple of {_STAGES}.")
    sizes = Sizes(dp=senders // _STAGES, pp=_STAGES)
    job = JobModel(sizes, microbatches=8, steps=chunks * _STEPS_A_CHUNK)
    trace = synthesize(job, seed=1).trace
    steps = np.array_split(np.unique(trace.step), chunks)
    bodies = []
    order = np.argsort(trace.rank, kind="stable")
    bounds = np.searchsorted(trace.rank[order], np.arange(senders + 1))
    for rank in range(senders):
        rows = order[bounds[rank] : bounds[rank + 1]]
        of_rank = trace.of_rows(np.sort(rows))
        host = {rank: f"node-{rank // _RANKS_A_HOST:04d}"}
        of_rank = replace(of_rank, meta=replace(of_rank.meta, hosts=host))
        bodies.append(tuple(_chunk(of_rank, wanted) for wanted in steps))
    return Shares(tuple(bodies), len(trace))


def _chunk(trace: Trace, steps: np.ndarray) -> bytes:
    return to_ndjson_gz(trace.of_rows(np.flatnonzero(np.isin(trace.step, steps))))


def measure(version: str, tree: Path, shares: Shares, extra: tuple[str, ...] = ()) -> Flush:
    """Run one version and send it the chunks."""
    with serving(tree, extra) as installation:
        asyncio.run(settled(installation.address, installation.pid))
        return asyncio.run(_flush(version, installation.address, installation.pid, shares))


async def _flush(version: str, address: str, pid: int, shares: Shares) -> Flush:
    answers = Answers()
    # A separate process reads pages: in the process of a thousand senders its times would include
    # theirs.
    spawning = multiprocessing.get_context("spawn")
    parent_end, child_end = spawning.Pipe()
    looking = spawning.Process(target=_look_in_turn, args=(address, child_end), daemon=True)
    looking.start()
    await asyncio.to_thread(parent_end.recv)
    before_s = processor_s(pid)
    began_s = time.monotonic()
    await asyncio.gather(
        *(_send(address, rank, bodies, answers) for rank, bodies in enumerate(shares.bodies))
    )
    acknowledged_s = time.monotonic() - began_s
    parent_end.send("over")
    answers.pages_s = await asyncio.to_thread(parent_end.recv)
    looking.join()
    used_s = processor_s(pid) - before_s
    reported = await _reported(address)
    reported_s = time.monotonic() - began_s
    return Flush(
        version,
        answers.acknowledged,
        acknowledged_s,
        reported_s,
        used_s,
        answers,
        int(reported["intake"]["chunks"]),
        str(reported["state"]),
    )


async def _send(address: str, rank: int, bodies: tuple[bytes, ...], answers: Answers) -> None:
    """Send a rank's chunks one after the other, with the retries that the server requests."""
    line = Line(address)
    try:
        for number, body in enumerate(bodies):
            final = "?final=true" if number == len(bodies) - 1 else ""
            path = f"/api/v1/jobs/{_JOB}/attempts/1/sessions/1/chunks/rank-{rank}/{number}{final}"
            while True:
                status, wait_s, content = await line.ask("PUT", path, body)
                if status in _STORED:
                    answers.acknowledged += 1
                    break
                if status != _BUSY:
                    raise RuntimeError(f"{path} answered {status}: {content[:300]!r}")
                answers.busy += 1
                await asyncio.sleep(wait_s)
    finally:
        line.close()


def _look_in_turn(address: str, pipe: Connection) -> None:
    """Read one page after the other until a message arrives; then send the response times."""
    pipe.send("begun")
    pipe.send(asyncio.run(_look(address, pipe)))


async def _look(address: str, pipe: Connection) -> list[float]:
    line = Line(address)
    pages_s: list[float] = []
    while not pipe.poll():
        began_s = time.monotonic()
        await line.ask("GET", _PAGES[len(pages_s) % len(_PAGES)])
        pages_s.append(time.monotonic() - began_s)
        await asyncio.sleep(_PAGE_EVERY_S)
    line.close()
    return pages_s


async def _reported(address: str) -> Any:  # noqa: ANN401 - an answer
    line = Line(address)
    until_s = time.monotonic() + _REPORT_S
    while True:
        _, _, content = await line.ask("GET", f"/api/v1/sessions?job={_JOB}")
        (listed,) = json.loads(content)["sessions"]
        if listed["state"] not in {"open", "queued", "analyzing"} or time.monotonic() > until_s:
            _, _, content = await line.ask("GET", f"/api/v1/sessions/{listed['id']}")
            line.close()
            return json.loads(content)
        await asyncio.sleep(0.5)


def main() -> None:
    """Print the figures; fail if a chunk was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--senders", type=int, default=1024)
    parser.add_argument("--chunks", type=int, default=4, help="of each sender")
    parser.add_argument("--workers", type=int, default=1, help="API processes")
    parser.add_argument("--before", type=Path, help="checkout of another version, which runs first")
    kinds = parser.add_subparsers(dest="kind", help="another load than a flush")
    pulse = kinds.add_parser("pulse", help="rows of all ranks all the time")
    pulse.add_argument("--hosts", type=int, default=1000)
    pulse.add_argument("--ranks", type=int, default=8, help="of each host")
    pulse.add_argument("--seconds", type=int, default=60)
    pulse.add_argument("--step", type=float, default=1.0, help="seconds")
    pulse.add_argument("--baseline", type=float, default=15.0, help="seconds without a pulse")
    arguments = parser.parse_args()
    if arguments.kind == "pulse":
        given = Load(
            arguments.hosts,
            arguments.ranks,
            arguments.seconds,
            arguments.step,
            arguments.baseline,
            arguments.workers,
        )
        chunk = make_shares(_STAGES, 1).bodies[0][0]
        if not measure_pulse((arguments.before or _HERE).resolve(), given, chunk):
            raise SystemExit(1)
        return
    shares = make_shares(arguments.senders, arguments.chunks)
    size = sum(len(body) for bodies in shares.bodies for body in bodies)
    print(
        f"{arguments.senders:,} senders of one session, {shares.chunks:,} chunks of "
        f"{size / shares.chunks / 1e3:.1f} kB, {shares.operations:,} operations",
        flush=True,
    )
    extra = () if arguments.workers == 1 else ("--workers", str(arguments.workers))
    flushes = []
    if arguments.before is not None:
        flushes.append(measure("before", arguments.before.resolve(), shares))
        print(*flushes[-1].lines(), sep="\n", flush=True)
    flushes.append(measure("this version", _HERE, shares, extra))
    print(*flushes[-1].lines(), sep="\n", flush=True)
    if len(flushes) > 1:
        first, last = flushes
        print(
            f"this version against before: {first.acknowledged_s / last.acknowledged_s:.1f} times "
            f"as fast, {first.processor_s / last.processor_s:.1f} times less of the processor"
        )
    lost = sum(shares.chunks - flush.taken for flush in flushes)
    print(f"chunks {shares.chunks}, lost {lost}")
    if lost:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
