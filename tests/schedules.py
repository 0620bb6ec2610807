"""Jobs of every pipeline schedule, executed event by event without the app's code.

A worker (DP rank, stage) launches operations on streams: computation, DP collectives, and one for
each of the four kinds of transfer. An operation is launched when the one before it on its stream
and everything else that it waits for has ended; it moves data when its whole group was launched.
Instants are whole nanoseconds, so a replay has to give exactly these times.
"""

from __future__ import annotations

# ruff: noqa: S311, C901, PLR0917 - noise has to repeat itself; one flat simulation reads best
import heapq
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from app.analysis.trace.model import KNOWN_OP_TYPES, SessionMeta, Sizes, Trace

# (kind, microbatch, chunk): kind is F(orward), B(ackward) or W(eight gradients)
Compute = tuple[str, int, int]
Key = tuple[object, ...]

NAMES = {"F": "forward-compute", "B": "backward-compute", "W": "backward-wgrad-compute"}
END_OF_STEP = (
    "gc",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "optimizer-clip-main-grad",
    "optimizer",
)
EVERYTHING = frozenset({*END_OF_STEP, "params-all-gather", "grads-reduce-scatter"})


class DeadlockError(Exception):
    """Operations wait for one another in a circle, so no real job can run them."""


@dataclass(frozen=True)
class Job:
    """A job; `missing_chunks` are virtual stages (stage, chunk) that the model does not have."""

    schedule: str = "1f1b"  # gpipe, 1f1b, interleaved, zero-bubble, v, two-way
    dp: int = 2
    pp: int = 2
    vpp: int = 1
    cp: int = 1
    microbatches: int = 4
    overlapped: bool = False
    buckets: int = 1
    types: frozenset[str] = EVERYTHING
    missing_chunks: frozenset[tuple[int, int]] = frozenset()
    edge_transfers: bool = False
    jitter: bool = True  # members of a group end at different times
    compute_ns: int | None = None  # typical duration of computations; None: random
    transfer_ns: int | None = None  # the same for all other operations
    slow: tuple[tuple[int, int], float] | None = None  # a slow worker (dp, pp) and its factor
    # (steps, dp): microbatches of each DP rank; empty if equal
    counts: tuple[tuple[int, ...], ...] = ()

    def of_rank(self, step: int, dp: int) -> Job:
        """Return the job with the microbatches of one DP rank."""
        return replace(self, microbatches=self.counts[step][dp]) if self.counts else self

    @property
    def flow(self) -> list[tuple[int, int]]:
        """Virtual stages in order from the input to the loss."""
        every = [(stage, chunk) for chunk in range(self.vpp) for stage in range(self.pp)]
        if self.schedule in {"v", "two-way"}:
            every = every[: self.pp] + every[self.pp :][::-1]
        return [place for place in every if place not in self.missing_chunks]

    @property
    def routes(self) -> list[list[tuple[int, int]]]:
        """Such an order for each direction; DualPipe's second half starts at the last stage."""
        if self.schedule == "two-way":
            return [self.flow[: self.pp], self.flow[self.pp :]]
        return [self.flow]


def greedily(job: Job) -> list[list[Compute]]:
    """Return each stage's order: a backward goes first; a forward takes 1 and a backward 2."""
    ready: dict[int, list[tuple[int, int, Compute]]] = {stage: [] for stage in range(job.pp)}
    orders: list[list[Compute]] = [[] for _ in range(job.pp)]
    for number, route in enumerate(job.routes):
        for mb in range(job.microbatches):
            stage, chunk = route[0]
            ready[stage].append((1, mb, ("F", mb + number * job.microbatches, chunk)))
    free = dict.fromkeys(range(job.pp), 0)
    ends: list[tuple[int, int, Compute]] = []
    now = 0
    while any(ready.values()) or ends:
        while ends and ends[0][0] <= now:
            _, stage, (kind, mb, chunk) = heapq.heappop(ends)
            route = next(r for r in job.routes if (stage, chunk) in r)
            at = route.index((stage, chunk))
            turns = kind == "F" and at == len(route) - 1
            following = at if turns else at + (1 if kind == "F" else -1)
            if following < 0:
                continue
            there, its_chunk = route[following]
            forward = kind == "F" and not turns
            ready[there].append((int(forward), mb, ("F" if forward else "B", mb, its_chunk)))
        for stage, waiting in ready.items():
            if waiting and free[stage] <= now:
                chosen = min(waiting)
                waiting.remove(chosen)
                orders[stage].append(chosen[2])
                free[stage] = now + (1 if chosen[2][0] == "F" else 2)
                heapq.heappush(ends, (free[stage], stage, chosen[2]))
        now += 1
    return orders


def computes(job: Job, stage: int) -> list[Compute]:
    """Return what a stage computes in one step, in the order of its launch."""
    if job.schedule in {"v", "two-way"}:
        return greedily(job)[stage]
    total = job.microbatches * job.vpp

    def at(k: int, kind: str) -> Compute:
        if job.vpp == 1:
            return kind, k, 0
        turn, within = divmod(k, job.pp * job.vpp)
        chunk = within // job.pp
        mb = turn * job.pp + within % job.pp
        return kind, mb, chunk if kind == "F" else job.vpp - 1 - chunk

    warm_up = {
        "gpipe": total,
        "1f1b": job.pp - 1 - stage,
        "zero-bubble": job.pp - 1 - stage,
        "interleaved": (job.pp - 1 - stage) * 2 + (job.vpp - 1) * job.pp,
    }[job.schedule]
    if job.vpp > 1 and job.microbatches == job.pp:
        warm_up = total
    warm_up = min(warm_up, total)
    order = [at(k, "F") for k in range(warm_up)]
    for k in range(total):
        if k + warm_up < total:
            order.append(at(k + warm_up, "F"))
        order.append(at(k, "B"))
        if job.schedule == "zero-bubble" and k >= stage:
            order.append(at(k - stage, "W"))
    if job.schedule == "zero-bubble":
        order += [at(k, "W") for k in range(max(total - stage, 0), total)]
    return [c for c in order if (stage, c[2]) not in job.missing_chunks]


@dataclass
class Op:
    name: str
    dp: int
    pp: int
    mb: int
    mc: int
    duration: int
    waits: set[int] = field(default_factory=set)
    group: Key = ()
    start: int = -1
    end: int = -1


class Step:
    """The execution of one step."""

    def __init__(self, job: Job, rng: random.Random, number: int = 0) -> None:
        self.job, self.rng, self.number = job, rng, number
        self.ops: list[Op] = []
        self.last_on: dict[Key, int] = {}
        self.groups: dict[Key, list[int]] = defaultdict(list)
        for dp in range(job.dp):
            for pp in range(job.pp):
                self.plan(dp, pp)

    def add(
        self,
        name: str,
        worker: tuple[int, int],
        waits: list[int | None],
        stream: str | None = None,
        place: tuple[int, int] = (-1, -1),
        group: Key | None = None,
    ) -> int:
        index = len(self.ops)
        key = (*worker, stream)
        before = self.last_on.get(key) if stream else None
        if stream:
            self.last_on[key] = index
        needed = {w for w in (*waits, before) if w is not None}
        group = group or ("alone", index)
        self.groups[group].append(index)
        # members of a group end at different times only if the job says so
        spread = random.Random(f"{group}{self.rng.random() if self.job.jitter else ''}")
        duration = 0 if name == "gc" else spread.randrange(1_000, 100_000_000)
        if self.job.compute_ns and name in NAMES.values():
            slow, factor = self.job.slow or (None, 1.0)
            usual = self.job.compute_ns * (factor if worker == slow else 1.0)
            duration = round(usual * spread.uniform(0.98, 1.02))
        elif self.job.transfer_ns and name != "gc":
            duration = round(self.job.transfer_ns * spread.uniform(0.98, 1.02))
        self.ops.append(Op(name, *worker, *place, duration, needed, group))
        return index

    def plan(self, dp: int, pp: int) -> None:
        job, worker = self.job, (dp, pp)
        order = computes(job.of_rank(self.number, dp), pp)
        gathers: dict[int, int] = {}
        chunks = [chunk for chunk in range(job.vpp) if (pp, chunk) not in job.missing_chunks]
        if "params-all-gather" in job.types:
            for chunk in chunks:
                gathers[chunk] = self.collectives("params-all-gather", worker, chunk, [])
        first_backward = next(i for i, c in enumerate(order) if c[0] != "F")
        gate: int | None = None
        last: dict[str, int] = {}
        remaining = {chunk: sum(c[0] != "F" and c[2] == chunk for c in order) for chunk in chunks}
        overlapped: int | None = None
        node = -1
        for position, (kind, mb, chunk) in enumerate(order):
            flow = next(route for route in job.routes if (pp, chunk) in route)
            at = flow.index((pp, chunk))
            recv: int | None = None
            step = {"F": 1, "B": -1, "W": 0}[kind]
            direction = "forward" if kind == "F" else "backward"
            before, behind = at - step, at + step
            has_source = step and 0 <= before < len(flow) and flow[before][0] != pp
            if step and (has_source or job.edge_transfers):
                name = f"{direction}-recv"
                waits = [last.get(kind)]
                if kind == "B" and (dp, pp, name) not in self.last_on:
                    waits.append(gate)
                link = ("p2p", dp, direction, flow[before] if has_source else None, mb)
                recv = self.add(
                    name, worker, waits, name, (mb, chunk), link if has_source else None
                )
            waits = [recv, gathers.pop(chunk, None) if kind == "F" else None]
            node = last[kind] = self.add(NAMES[kind], worker, waits, "compute", (mb, chunk))
            if position == first_backward - 2:
                gate = node
            has_target = step and 0 <= behind < len(flow) and flow[behind][0] != pp
            if step and (has_target or job.edge_transfers):
                name = f"{direction}-send"
                link = ("p2p", dp, direction, (pp, chunk), mb)
                self.add(name, worker, [node], name, (mb, chunk), link if has_target else None)
            if kind != "F":
                remaining[chunk] -= 1
                if job.overlapped and not remaining[chunk]:
                    overlapped = self.collectives("grads-reduce-scatter", worker, chunk, [node])
        self.finish(worker, node, overlapped)

    def collectives(self, name: str, worker: tuple[int, int], chunk: int, waits: list[int]) -> int:
        node = -1
        for bucket in range(self.job.buckets):
            group = ("dp", name, worker[1], chunk, bucket)
            node = self.add(name, worker, [*waits], "dp", (-1, chunk), group)
        return node

    def finish(self, worker: tuple[int, int], tail: int, overlapped: int | None) -> None:
        job, pp = self.job, worker[1]
        late: int | None = overlapped

        def chained(name: str, stream: str | None = None, group: Key | None = None) -> None:
            nonlocal tail, late
            tail = self.add(
                name, worker, [tail, None if name == "gc" else late], stream, group=group
            )
            late = late if name == "gc" else None

        for name in END_OF_STEP[:2]:
            if name in job.types:
                chained(name)
        if "embedding-grads-all-reduce" in job.types and job.pp > 1 and pp in (0, job.pp - 1):
            chained("embedding-grads-all-reduce", group=("embedding", worker[0]))
        if job.overlapped:
            name = "separate-grads-all-reduce"
            chained(name, "dp", ("dp", name, pp))
        elif "grads-reduce-scatter" in job.types:
            for chunk in range(job.vpp):
                if (pp, chunk) not in job.missing_chunks:
                    tail = self.collectives("grads-reduce-scatter", worker, chunk, [tail])
        if "optimizer-clip-main-grad" in job.types:
            chained("optimizer-clip-main-grad", group=("clip",))
        if "optimizer" in job.types:
            chained("optimizer")

    def execute(self) -> int:
        """Run to the end; return the step's time in ns."""
        missing = [set(op.waits) for op in self.ops]
        waiting: dict[int, list[int]] = defaultdict(list)
        for index, op in enumerate(self.ops):
            for other in op.waits:
                waiting[other].append(index)
        absent = {group: len(members) for group, members in self.groups.items()}
        events: list[tuple[int, int]] = []

        def launch(index: int, now: int) -> None:
            op = self.ops[index]
            op.start = now
            absent[op.group] -= 1
            if not absent[op.group]:
                for member in self.groups[op.group]:
                    heapq.heappush(events, (now + self.ops[member].duration, member))

        for index in range(len(self.ops)):
            if not missing[index]:
                launch(index, 0)
        now = 0
        while events:
            now, index = heapq.heappop(events)
            self.ops[index].end = now
            for other in waiting[index]:
                missing[other].discard(index)
                if not missing[other]:
                    launch(other, now)
        if any(op.end < 0 for op in self.ops):
            raise DeadlockError
        return now


def executed(job: Job, *, steps: int = 3, seed: int = 0) -> tuple[Trace, list[int]]:
    """Return the trace of some steps and their true times in ns."""
    rng = random.Random(seed)
    rows: list[tuple[int, ...]] = []
    times = []
    for step in range(steps):
        run = Step(job, rng, step)
        times.append(run.execute())
        rows.extend(_rows(job, step, run))
    columns = np.array(rows, dtype=np.int64).T
    names = ("rank", "dp", "pp", "step", "op", "mb", "mc", "order", "start_ns", "duration_ns")
    kinds = ("i4", "i4", "i4", "i8", "i2", "i4", "i4", "i4", "i8", "i8")
    trace = Trace(
        meta=SessionMeta(Sizes(dp=job.dp, pp=job.pp, cp=job.cp, vpp=job.vpp)),
        op_names=KNOWN_OP_TYPES,
        step_relative=True,
        **{n: column.astype(k) for n, column, k in zip(names, columns, kinds, strict=True)},
    )
    return trace, times


def _rows(job: Job, step: int, run: Step) -> Iterator[tuple[int, ...]]:
    seen: dict[Key, int] = defaultdict(int)
    for op in sorted(run.ops, key=lambda op: (op.pp, op.dp, op.start)):
        key = (op.dp, op.pp, op.name)
        rank = (op.pp * job.dp + op.dp) * job.cp
        code = KNOWN_OP_TYPES.index(op.name)
        place = (rank, op.dp, op.pp, step, code, op.mb, op.mc, seen[key])
        yield (*place, op.start, op.end - op.start)
        seen[key] += 1
