"""The pulse of a large job at a step a second: ``python -m benchmarks.load pulse``.

The installation is real, as in `benchmarks.load`. Each host sends a body every five seconds, at
times that are spread over the hosts, as the client does. Before and during this, pages are read and
chunks of a session are sent. Prints rows a second, the processor's share, the seconds from the
answer to a body until a worker has stored it, bytes written a day, and the response times of pages
and chunks with and without the pulse.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import psycopg

from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob
from app.platform.embedded.server import running_url
from benchmarks.support.installation import Installation, Line, processors, serving, settled
from paceline_client.pulse.rows import Beat, Row, body_of

if TYPE_CHECKING:
    from app.analysis.pulse.columns import Pulses

EVERY_S: Final = 5
_STAGES: Final = 8
_JOB: Final = "pulsing"
_PATH: Final = f"/api/v1/jobs/{_JOB}/attempts/1/pulse"
_PAGES: Final = ("/", f"/jobs/{_JOB}", "/hosts")
_LOOK_EVERY_S: Final = 0.25
_TAKEN_EVERY_S: Final = 0.1
_DAY_S: Final = 86_400
_ACCEPTED: Final = 202
_DRAINED_S: Final = 120.0
# Rows that are encoded into bodies in a second, on a machine with other load.
_PREPARED_ROWS_S: Final = 40_000


@dataclass(frozen=True, slots=True)
class Sent:
    """The bodies of one host, with the time of each, seconds from the start."""

    due_s: Sequence[float]
    bodies: Sequence[bytes]
    rows: Sequence[int]


@dataclass(slots=True)
class Looked:
    """Response times of pages and chunks, s."""

    pages_s: list[float] = field(default_factory=list)
    chunks_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Answers:
    """The time, the number of rows and the response time of each answered body."""

    at_s: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """Number of rows that workers had stored, by time."""

    at_s: Sequence[float]
    rows: Sequence[int]


@dataclass(frozen=True, slots=True)
class Load:
    """Sizes of the requested load."""

    hosts: int
    ranks: int
    seconds: int
    step_s: float
    baseline_s: float
    workers: int


def bodies_of(rows: Pulses, hosts: int, ranks: int, start_ns: int) -> list[Sent]:
    """Return the bodies of each host: one every five seconds, at the host's own offset."""
    columns = [getattr(rows, name) for name in Row._fields]
    at = Row._fields.index("time_ns")
    columns[at] = columns[at] - int(columns[at].min()) + start_ns
    lines = np.stack(columns, axis=1)
    of_host = rows.rank // ranks
    of_hosts = []
    for host in range(hosts):
        of_this_host = lines[of_host == host]
        ended_s = (of_this_host[:, at] - start_ns) / 1e9
        phase = host / hosts * EVERY_S
        due = np.arange(EVERY_S + phase, ended_s.max() + EVERY_S, EVERY_S)
        number = np.searchsorted(due, ended_s)
        bodies, sizes = [], []
        for place, due_s in enumerate(due.tolist()):
            part = [Row(*line) for line in of_this_host[number == place].tolist()]
            now_ns = start_ns + int(due_s * 1e9)
            last = {row.rank: row for row in part}
            beats = [
                Beat(*row[:4], now_ns, "forward-compute", now_ns - 100_000_000)
                for row in last.values()
            ]
            bodies.append(body_of(f"node-{host:04d}", part, beats))
            sizes.append(len(part) + len(beats))
        of_hosts.append(Sent(due.tolist(), bodies, sizes))
    return of_hosts


async def _send(address: str, sent: Sent, began_s: float, answers: Answers) -> None:
    line = Line(address)
    for due_s, body, rows in zip(sent.due_s, sent.bodies, sent.rows, strict=True):
        await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
        asked_s = time.monotonic()
        status, _, _ = await line.ask("POST", _PATH, body)
        now_s = time.monotonic()
        answers.took_s.append(now_s - asked_s)
        answers.late_s.append(asked_s - began_s - due_s)
        if status == _ACCEPTED:
            answers.at_s.append(now_s)
            answers.rows.append(rows)
        else:
            answers.refused += 1
    line.close()


async def _look(address: str, looked: Looked, chunk: bytes, over: asyncio.Event) -> None:
    """Read pages and send chunks in turn until the load ends."""
    line = Line(address)
    turn = 0
    while not over.is_set():
        began_s = time.monotonic()
        await line.ask("GET", _PAGES[turn % len(_PAGES)])
        looked.pages_s.append(time.monotonic() - began_s)
        # A session that is never sealed, so that no analysis adds to the load.
        path = f"/api/v1/jobs/ingest/attempts/1/sessions/1/chunks/r{id(looked)}/{turn}"
        began_s = time.monotonic()
        status, _, content = await line.ask("PUT", path, chunk)
        if status not in {200, 202}:
            raise RuntimeError(f"{path} answered {status}: {content[:300]!r}")
        looked.chunks_s.append(time.monotonic() - began_s)
        turn += 1
        await asyncio.sleep(_LOOK_EVERY_S)
    line.close()


async def _watch(url: str, over: asyncio.Event) -> Taken:
    """Record the number of stored rows until the load ends."""
    at_s, rows = [], []
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as database:
        while not over.is_set():
            result = await database.execute("SELECT coalesce(sum(rows), 0) FROM pulse_state")
            (taken,) = await result.fetchone() or (0,)
            at_s.append(time.monotonic())
            rows.append(int(taken))
            await asyncio.sleep(_TAKEN_EVERY_S)
    return Taken(at_s, rows)


def lags_s(answers: Answers, taken: Taken) -> list[float]:
    """Return for each body the seconds from its answer until a worker had stored it."""
    order = np.argsort(answers.at_s)
    sent = np.cumsum(np.array(answers.rows)[order])
    first = np.searchsorted(np.array(taken.rows), sent)
    was_stored = first < len(taken.rows)
    when = np.array(taken.at_s)[np.minimum(first, len(taken.rows) - 1)]
    lags: list[float] = (when - np.array(answers.at_s)[order])[was_stored].tolist()
    return lags


def _prepared(load: Load) -> tuple[list[Sent], float]:
    """Return the bodies of all hosts, and the start by the monotonic clock."""
    world = load.hosts * load.ranks
    dials = PulseDials(
        dp=world // _STAGES,
        pp=_STAGES,
        steps=int(load.seconds / load.step_s),
        host_ranks=load.ranks,
        # The step time is that of the slowest rank plus that of the network.
        step_s=load.step_s / 0.89,
    )
    rows = PulseJob.healthy(dials, stream(1, "load")).rows()
    lead_s = 2.0 + len(rows) / _PREPARED_ROWS_S
    start_ns, began_s = time.time_ns() + int(lead_s * 1e9), time.monotonic() + lead_s
    sent = bodies_of(rows, load.hosts, load.ranks, start_ns)
    if (late_s := time.monotonic() - began_s) > 0:
        print(f"bodies were ready {late_s:.1f} s after they were due: times in them are that old")
        began_s += late_s
    return sent, began_s


async def _quiet(address: str, seconds: float, chunk: bytes) -> Looked:
    looked, over = Looked(), asyncio.Event()
    looking = asyncio.create_task(_look(address, looked, chunk, over))
    await asyncio.sleep(seconds)
    over.set()
    await looking
    return looked


async def _settled(installation: Installation) -> float:
    began_s = time.monotonic()
    await settled(installation.address, installation.pid)
    return time.monotonic() - began_s


async def _measure(installation: Installation, load: Load, chunk: bytes) -> bool:
    """Print the measured values; return whether all rows were stored in time."""
    url = running_url(installation.data_dir)
    if url is None:
        raise SystemExit("the installation's database does not run")
    url = url.replace("postgresql+psycopg", "postgresql")
    print(f"started after {await _settled(installation):.0f} s", flush=True)
    before = await _quiet(installation.address, load.baseline_s, chunk)
    sent, began_s = await asyncio.to_thread(_prepared, load)
    await asyncio.sleep(max(0.0, began_s - time.monotonic()))
    used_s, own_s = processors(installation.pid), time.process_time()
    answers, meanwhile, over, drained = Answers(), Looked(), asyncio.Event(), asyncio.Event()
    looking = asyncio.create_task(_look(installation.address, meanwhile, chunk, over))
    watching = asyncio.create_task(_watch(url, drained))
    await asyncio.gather(*(_send(installation.address, host, began_s, answers) for host in sent))
    over.set()
    await looking
    passed_s = time.monotonic() - began_s
    used_s = {
        name: now_s - used_s.get(name, 0.0) for name, now_s in processors(installation.pid).items()
    }
    own_s = time.process_time() - own_s
    left = await _drained(url)
    drained.set()
    taken = await watching
    for line in _lines(load, sent, answers, passed_s):
        print(line)
    shares = ", ".join(
        f"{name} {seconds / passed_s:.0%}"
        for name, seconds in sorted(used_s.items(), key=lambda item: -item[1])
    )
    print(f"of a processor: {shares}; this sender {own_s / passed_s:.0%}")
    lags = lags_s(answers, taken)
    print(f"lag {_spread(lags)} from the answer to a body until a worker had taken it")
    print(await _kept(url, taken.rows[-1]))
    for name in ("pages_s", "chunks_s"):
        quiet, busy = getattr(before, name), getattr(meanwhile, name)
        print(f"{name[:-2]} {_spread(quiet)} before, {_spread(busy)} meanwhile")
    lost = sum(answers.rows) - taken.rows[-1]
    print(f"rows {sum(answers.rows)}, left {left}, lost {lost}, refused bodies {answers.refused}")
    return lost == 0 and answers.refused == 0


def _lines(load: Load, sent: Sequence[Sent], answers: Answers, passed_s: float) -> Iterator[str]:
    wire = sum(len(body) for host in sent for body in host.bodies)
    rows = sum(answers.rows)
    yield (
        f"{load.hosts:,} hosts × {load.ranks} ranks at a step each {load.step_s:g} s for "
        f"{passed_s:.0f} s: {rows / passed_s:,.0f} rows/s in {len(answers.at_s) / passed_s:.0f} "
        f"bodies/s, answered in {_spread(answers.took_s)}, sent {_spread(answers.late_s)} late"
    )
    yield f"on the wire {wire / rows:.0f} bytes a row, {_a_day(wire / passed_s)}"


async def _drained(url: str) -> int:
    """Wait until no body waits; return the number of bodies that still wait at the time limit."""
    until_s = time.monotonic() + _DRAINED_S
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as database:
        while True:
            result = await database.execute("SELECT count(*) FROM inbox WHERE kind = 'pulse'")
            (left,) = await result.fetchone() or (0,)
            if not left or time.monotonic() > until_s:
                await asyncio.sleep(2 * _TAKEN_EVERY_S)
                return int(left)
            await asyncio.sleep(_TAKEN_EVERY_S)


async def _kept(url: str, rows: int) -> str:
    """Return the stored rows and bytes as text."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as database:
        result = await database.execute(
            "SELECT (SELECT sum(octet_length(body)) FROM pulse_block),"
            " (SELECT sum(octet_length(sums)) FROM pulse_span WHERE seconds = 60),"
            " (SELECT count(*) FROM pulse_span WHERE seconds = 60),"
            " (SELECT octet_length(state) FROM pulse_state LIMIT 1),"
            " (SELECT counts FROM pulse_state LIMIT 1)"
        )
        blocks, sums, minutes, state, counts = await result.fetchone() or (0, 0, 0, 0, {})
    blocks, sums = int(blocks or 0), int(sums or 0)
    a_row, a_minute = blocks / max(1, rows), sums / max(1, minutes)
    return (
        f"kept {a_row:.0f} bytes a row, sums of {a_minute:,.0f} bytes a minute, "
        f"a state of {state:,} bytes; left out: {counts or 'nothing'}"
    )


def _spread(seconds: Sequence[float]) -> str:
    """Return the median and the 95th percentile as text."""
    if not seconds:
        return "never"
    middle, high = np.quantile(np.array(seconds) * 1e3, [0.5, 0.95])
    return f"{middle:,.0f} ms, p95 {high:,.0f} ms"


def _a_day(bytes_a_second: float) -> str:
    return f"{bytes_a_second * _DAY_S / 1e9:.1f} GB a day"


def measure_pulse(tree: Path, load: Load, chunk: bytes) -> bool:
    """Send an installation a pulse and print the figures; return whether no row was lost."""
    extra = () if load.workers == 1 else ("--workers", str(load.workers))
    with serving(tree, extra) as installation:
        return asyncio.run(_measure(installation, load, chunk))
