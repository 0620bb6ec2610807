"""Random jobs of nested groups and pipelines, one rank of which may compute longer than its peers.

An event simulation of its own: each rank runs its program, posts exchanges, and waits for them. An
exchange ends on all its ranks together, a fixed time after the last of them has posted it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from app.analysis.quantities import IntArray
from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    GRADS_REDUCE_SCATTER,
    KNOWN_OP_TYPES,
    OPTIMIZER,
    PARAMS_ALL_GATHER,
    SessionMeta,
    Sizes,
    Trace,
)

MS = 1_000_000
NS_A_SECOND = 1_000_000_000
# Time of any exchange after its last rank has posted it.
_TRANSFER_NS = MS // 5
_LAYERS = 2


@dataclass(frozen=True)
class NestedJob:
    """Sizes, schedule and noise of a job."""

    sizes: Sizes
    experts: int  # ranks that share experts; 1 for none
    microbatches: int
    steps: int
    fills_first: bool  # GPipe instead of 1F1B
    blocking: bool  # ranks wait for their sends
    buffered: bool  # a send is recorded until its data are copied, and not until they are received
    ahead: bool  # a receive is posted before the computation before it
    buckets: int  # of gradients, reduced while the last backward computes
    gathers: bool  # parameters, at the end of a step
    noise: float  # of computing times, relative
    clocks_ns: int  # largest offset of a rank's clock
    seed: int
    origin: int | None = None  # rank that computes longer
    factor: float = 1.0  # its computing times ÷ those of its peers

    @property
    def healthy(self) -> NestedJob:
        """Return the same job without a slow rank."""
        return replace(self, origin=None, factor=1.0)


def nested_job(seed: int) -> NestedJob:
    """Return a random job with a slow rank."""
    rng = np.random.default_rng(seed)

    def one_of(*values: int) -> int:
        return int(rng.choice(values))

    dp, pp, tp, cp = one_of(2, 3, 4), one_of(1, 2, 3, 4), one_of(1, 1, 2, 4), one_of(1, 1, 2)
    sizes = Sizes(dp=dp, pp=pp, tp=tp, cp=cp)
    return NestedJob(
        sizes=sizes,
        experts=2 if dp % 2 == 0 and rng.random() < 1 / 3 else 1,
        microbatches=one_of(2, 4, 6),
        steps=3,
        fills_first=bool(rng.random() < 1 / 3),
        blocking=bool(rng.random() < 1 / 2),
        buffered=bool(rng.random() < 1 / 2),
        ahead=bool(rng.random() < 1 / 3),
        buckets=one_of(1, 1, 3),
        gathers=bool(rng.random() < 1 / 2),
        noise=float(rng.uniform(0, 0.02)),
        clocks_ns=one_of(0, 0, 3, 200) * MS,
        seed=seed,
        origin=int(rng.integers(sizes.world)),
        factor=float(rng.uniform(1.2, 2.5)),
    )


def run(job: NestedJob) -> Trace:
    """Return the trace of all ranks of a job."""
    simulation = _Simulation(job)
    ranks = [_Rank(simulation, rank) for rank in range(job.sizes.world)]
    programs = [(rank, rank.program()) for rank in ranks]
    waiting: dict[int, _Exchange | None] = dict.fromkeys(range(len(ranks)))
    while waiting:
        ready = [at for at, held in waiting.items() if held is None or held.end_ns is not None]
        assert ready, "the ranks wait for one another"
        for at in ready:
            rank, program = programs[at]
            held = waiting.pop(at)
            if held is not None and held.end_ns is not None:
                rank.now_ns = max(rank.now_ns, held.end_ns)
            with suppress(StopIteration):
                waiting[at] = next(program)
    return simulation.trace([row for rank in ranks for row in rank.rows])


@dataclass
class _Exchange:
    """An exchange: how many ranks take part, and when each of them has posted it."""

    ranks: int
    posted_ns: dict[int, int] = field(default_factory=dict)

    @property
    def end_ns(self) -> int | None:
        """Return the end; None while a rank is missing."""
        if len(self.posted_ns) < self.ranks:
            return None
        return max(self.posted_ns.values()) + _TRANSFER_NS


@dataclass
class _Row:
    rank: int
    step: int
    op: str
    mb: int
    order: int
    begin_ns: int
    end_ns: int | None  # None: the end of the exchange
    exchange: _Exchange | None = None


Key = tuple[object, ...]


class _Simulation:
    def __init__(self, job: NestedJob) -> None:
        self.job = job
        self.exchanges: dict[Key, _Exchange] = {}

    def trace(self, rows: list[_Row]) -> Trace:
        job, sizes = self.job, self.job.sizes
        rng = np.random.default_rng((job.seed, 1))
        clock_ns = rng.integers(-job.clocks_ns, job.clocks_ns + 1, sizes.world)
        rank = np.array([row.rank for row in rows])
        stage, dp, _, _ = _place(rank, sizes)
        end_ns = [
            row.exchange.end_ns if row.exchange and row.end_ns is None else row.end_ns
            for row in rows
        ]
        begin_ns = np.array([row.begin_ns for row in rows])
        return Trace(
            meta=SessionMeta(
                sizes,
                hosts={rank: f"node-{rank}" for rank in range(sizes.world)},
                extra={"ep": job.experts} if job.experts > 1 else {},
            ),
            op_names=KNOWN_OP_TYPES,
            rank=rank.astype(np.int32),
            dp=dp.astype(np.int32),
            pp=stage.astype(np.int32),
            step=np.array([row.step for row in rows]),
            op=np.array([KNOWN_OP_TYPES.index(row.op) for row in rows], dtype=np.int16),
            mb=np.array([row.mb for row in rows], dtype=np.int32),
            mc=np.full(len(rows), ABSENT, dtype=np.int32),
            order=np.array([row.order for row in rows], dtype=np.int32),
            step_relative=False,
            start_ns=begin_ns + clock_ns[rank] + 10 * NS_A_SECOND,
            duration_ns=np.array(end_ns) - begin_ns,
        )


def _place(rank: IntArray, sizes: Sizes) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return stages, DP, CP and TP ranks of global ranks."""
    rest, tp = np.divmod(rank, sizes.tp)
    rest, cp = np.divmod(rest, sizes.cp)
    stage, dp = np.divmod(rest, sizes.dp)
    return stage, dp, cp, tp


class _Rank:
    def __init__(self, simulation: _Simulation, rank: int) -> None:
        self.job, self.simulation, self.rank = simulation.job, simulation, rank
        self.stage, self.dp, self.cp, self.tp = map(int, _place(np.array(rank), self.job.sizes))
        self.now_ns = 0
        self.rows: list[_Row] = []
        self._step = 0
        self._orders: Counter[str] = Counter()
        self._rng = np.random.default_rng((self.job.seed, 2, rank))

    def program(self) -> Iterator[_Exchange]:
        """Run the steps; yield each exchange that the rank waits for."""
        job = self.job
        for self._step in range(job.steps):
            self._orders.clear()
            units = self._units()
            posted: list[_Exchange] = []
            received = [self._receive(units[0][1], backward=units[0][0])]
            for place, (backward, mb) in enumerate(units):
                following = units[place + 1] if place + 1 < len(units) else None
                if not (job.ahead or job.blocking) and place:
                    received.append(self._receive(mb, backward=backward))
                yield from self._wait(received.pop(0))
                if job.ahead and not job.blocking and following:
                    received.append(self._receive(following[1], backward=following[0]))
                last = place == len(units) - 1
                yield from self._compute(mb, posted if last else None, backward=backward)
                sent = self._send(mb, backward=backward)
                if job.blocking:
                    if following:
                        received.append(self._receive(following[1], backward=following[0]))
                    yield from self._wait(sent)
            yield from posted
            self._work(OPTIMIZER, -1, 5 * MS)
            if job.gathers:
                yield from self._collective(PARAMS_ALL_GATHER, *self._data)

    def _units(self) -> list[tuple[bool, int]]:
        """Return the computations of a step in order: (is backward, microbatch)."""
        count, pp = self.job.microbatches, self.job.sizes.pp
        filling = count if self.job.fills_first else min(pp - 1 - self.stage, count)
        units = [(False, mb) for mb in range(filling)]
        for mb in range(count - filling):
            units += [(False, filling + mb), (True, mb)]
        return units + [(True, mb) for mb in range(count - filling, count)]

    @property
    def _data(self) -> tuple[Key, int]:
        return ("dp", self.stage, self.cp, self.tp), self.job.sizes.dp

    def _post(self, op: str, key: Key, ranks: int, mb: int = -1) -> _Exchange:
        exchanges = self.simulation.exchanges
        exchange = exchanges.setdefault(key, _Exchange(ranks))
        exchange.posted_ns[self.rank] = self.now_ns
        self._record(op, mb, self.now_ns, None, exchange)
        return exchange

    def _record(
        self, op: str, mb: int, begin_ns: int, end_ns: int | None, exchange: _Exchange | None = None
    ) -> None:
        order = self._orders[op]
        self._orders[op] += 1
        self.rows.append(_Row(self.rank, self._step, op, mb, order, begin_ns, end_ns, exchange))

    @staticmethod
    def _wait(exchange: _Exchange | None) -> Iterator[_Exchange]:
        if exchange is not None:
            yield exchange

    def _collective(self, op: str, group: Key, ranks: int) -> Iterator[_Exchange]:
        yield self._post(op, (op, self._step, self._orders[op], *group), ranks)

    def _receive(self, mb: int, *, backward: bool) -> _Exchange | None:
        source = self.stage + (1 if backward else -1)
        if not 0 <= source < self.job.sizes.pp:
            return None
        op = BACKWARD_RECV if backward else FORWARD_RECV
        return self._post(op, self._link(mb, self.stage, backward=backward), 2, mb)

    def _send(self, mb: int, *, backward: bool) -> _Exchange | None:
        target = self.stage + (-1 if backward else 1)
        if not 0 <= target < self.job.sizes.pp:
            return None
        sent = self._post(
            BACKWARD_SEND if backward else FORWARD_SEND,
            self._link(mb, target, backward=backward),
            2,
            mb,
        )
        if self.job.buffered and not self.job.blocking:
            self.rows[-1].end_ns = self.now_ns + _TRANSFER_NS // 4
        return sent

    def _link(self, mb: int, receiver: int, *, backward: bool) -> Key:
        return (self._step, backward, mb, receiver, self.dp, self.cp, self.tp)

    def _work(self, op: str | None, mb: int, takes_ns: float) -> None:
        slow = self.job.factor if self.rank == self.job.origin else 1.0
        begin_ns = self.now_ns
        self.now_ns += int(takes_ns * slow * self._rng.lognormal(0, self.job.noise))
        if op is not None:
            self._record(op, mb, begin_ns, self.now_ns)

    def _compute(
        self, mb: int, posted: list[_Exchange] | None, *, backward: bool
    ) -> Iterator[_Exchange]:
        """Run a computation with the collectives inside it.

        `posted` is None, or the list to which the reductions of gradients are added.
        """
        job, sizes, begin_ns = self.job, self.job.sizes, self.now_ns
        cell = (self.stage, self.dp)
        experts = ("ep", self.stage, self.dp // job.experts, self.cp, self.tp)
        for layer in range(_LAYERS):
            self._work(None, mb, 10 * MS * (2 if backward else 1))
            if sizes.tp > 1:
                yield from self._collective("tp-all-reduce", ("tp", *cell, self.cp), sizes.tp)
            if sizes.cp > 1:
                yield from self._collective("cp-all-gather", ("cp", *cell, self.tp), sizes.cp)
            if job.experts > 1:
                yield from self._collective("ep-all-to-all", experts, job.experts)
                self._work(None, mb, 3 * MS)
                yield from self._collective("ep-all-to-all", experts, job.experts)
            if posted is not None and layer < job.buckets - 1:
                posted.append(self._bucket())
        if posted is not None:
            posted.append(self._bucket())
        self._record(BACKWARD_COMPUTE if backward else FORWARD_COMPUTE, mb, begin_ns, self.now_ns)

    def _bucket(self) -> _Exchange:
        group, ranks = self._data
        key = ("bucket", self._step, self._orders[GRADS_REDUCE_SCATTER], *group)
        return self._post(GRADS_REDUCE_SCATTER, key, ranks)
