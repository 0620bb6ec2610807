"""The controller of a tensor-parallel group, and the pre-test that samples its cost functions.

At each step boundary the ranks all-gather a few numbers: the times of each, and the plan that the
first rank has from the service. All ranks decide on the same numbers, so that all or none apply a
plan. The pre-test samples the cost of sending and extracting columns (Algorithm 2, line 1).
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from paceline_client.tensor.group import TensorGroup
from paceline_client.tensor.plan import (
    Method,
    Offer,
    Plan,
    PlanError,
    RankShare,
    apportion,
    plan_document,
    read_plan,
)
from paceline_client.tensor.service import Acknowledgement, Peer, Service
from paceline_client.tensor.watch import StepTime
from paceline_client.tensor.workload import Workload

_log = logging.getLogger("paceline_client")

Samples = tuple[tuple[int, float], ...]
SenderSamples = tuple[tuple[int, float, int], ...]

# Sampled shares of a rank's columns, in sixteenths. They cover the range of plans, because a line
# through small samples does not predict large shares.
_LENT: Final = (1, 4, 8, 14)
_LEVEL: Final = (1, 4, 8)
_LEFT_OUT: Final = (4, 14)
# Shares that half of the ranks lend at the same time, each.
_LENT_TOGETHER: Final = (4, 14)
_WHOLE: Final = 16
# Number of repetitions of all samples, of which the fastest step counts, because other load of a
# machine is temporary.
_ROUNDS: Final = 3
_POLL_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Costs:
    """Samples of a group's cost functions: (columns, additional seconds of a step)."""

    # The paper's Φ1: the seconds of a step in addition to the slowest rank's own time, by the
    # number of columns that ranks lend while they are ahead of the others, and the number of these
    # ranks: several take longer than one for the same columns.
    communicate: SenderSamples
    extract: Samples  # Ω2: of a rank outside its products, for columns that it leaves out
    lend: Samples = ()  # in addition to Φ1 if the rank that lends is not ahead

    def document(self) -> dict[str, Samples | SenderSamples]:
        """Return the samples for a report."""
        costs: dict[str, Samples | SenderSamples] = {
            "communicate": self.communicate,
            "extract": self.extract,
            "lend": self.lend,
        }
        return {name: samples for name, samples in costs.items() if samples}


@dataclass(frozen=True, slots=True)
class _Times:
    """Shortest times of a step: without the slowest rank's own time, and without products."""

    outside_s: float
    rest_s: float


def pre_test(
    workload: Workload, tp: TensorGroup, step: Callable[[], object], steps: int = 2
) -> Costs:
    """Sample the costs of a group without stragglers and without a plan, on all ranks together.

    The group `tp` has a watch. `step` trains for one step and is called about 110 times; in half of
    these steps, ranks leave columns out. If that must not change the model, `step` must not update
    it, or the model must be loaded again afterwards. Each sample takes `steps` steps in each round.
    """
    columns, size = workload.columns, tp.size
    # The other ranks must keep some of their columns.
    level = [part for part in _LEVEL if part * size < (_WHOLE - 1) * (size - 1)]
    plans: list[Plan | None] = [None]
    plans += [_lending(columns * part // _WHOLE, columns, size) for part in _LENT]
    plans += [_lending(columns * part // _WHOLE, columns, size, level=True) for part in level]
    several = size // 2
    together = _LENT_TOGETHER if several > 1 else ()
    plans += [_lending(columns * part // _WHOLE, columns, size, several) for part in together]
    plans += [
        Plan(0, Method.ZERO, columns, size, (RankShare(0, columns * part // _WHOLE),))
        for part in _LEFT_OUT
    ]
    rounds = [[_measure(workload, tp, plan, step, steps) for plan in plans] for _ in range(_ROUNDS)]
    workload.apply(None)
    samples = list(zip(*rounds, strict=True))
    outside_s = [min(times.outside_s for times in sample) for sample in samples]
    rest_s = [min(times.rest_s for times in sample) for sample in samples]
    ahead = dict(zip(_LENT, outside_s[1:], strict=False))
    not_ahead = dict(zip(level, outside_s[1 + len(_LENT) :], strict=False))
    of_several = dict(zip(together, outside_s[1 + len(_LENT) + len(level) :], strict=False))
    left_out = dict(zip(_LEFT_OUT, rest_s[-len(_LEFT_OUT) :], strict=True))

    def over(taken_s: dict[int, float], without_s: Callable[[int], float]) -> Samples:
        return tuple(
            (columns * part // _WHOLE, max(0.0, sample_s - without_s(part)))
            for part, sample_s in taken_s.items()
        )

    single = over(ahead, lambda _: outside_s[0])
    all_senders = over(of_several, lambda _: outside_s[0])
    return Costs(
        (
            *((count, taken_s, 1) for count, taken_s in single),
            *((several * count, taken_s, several) for count, taken_s in all_senders),
        ),
        over(left_out, lambda _: rest_s[0]),
        over(not_ahead, lambda part: max(ahead[part], outside_s[0])),
    )


def _lending(count: int, columns: int, size: int, senders: int = 1, *, level: bool = False) -> Plan:
    """Return a plan with which the first `senders` ranks lend `count` columns each to the others.

    With `level`, the others leave out columns so that all ranks compute the same number.
    """
    even = apportion([1] * (size - senders), count)
    lent = tuple((rank + senders, part) for rank, part in enumerate(even) if part)
    rest = tuple(RankShare(rank + senders, count + part) for rank, part in enumerate(even))
    shares = (*(RankShare(rank, 0, lent) for rank in range(senders)), *(rest if level else ()))
    return Plan(0, Method.MIGRATE, columns, size, shares)


def _measure(
    workload: Workload, tp: TensorGroup, plan: Plan | None, step: Callable[[], object], steps: int
) -> _Times:
    watch = tp.watch
    workload.apply(plan)
    # An unmeasured first step allocates memory for the new shapes.
    step()
    watch.end_step(-1)
    took_s = []
    for number in range(steps):
        began_s = time.perf_counter()
        step()
        watch.end_step(number)
        took_s.append(time.perf_counter() - began_s)
    own: dict[int, StepTime] = {}
    while steps - 1 not in own:
        own |= {times.step: times for times in watch.finished()}
        time.sleep(_POLL_S)
    ended = range(steps)
    mine = torch.tensor(
        [
            took_s,
            [own[number].time_s for number in ended],
            [own[number].time_s - own[number].matmul_s for number in ended],
        ],
        dtype=torch.float64,
    )
    if dist.get_backend(tp.process_group) != "gloo":
        mine = mine.to(workload.device)
    everyone = mine.new_empty(tp.size, *mine.shape)
    dist.all_gather(list(everyone), mine, group=tp.process_group)
    # Computing the difference in each step cancels the noise of a rank's own work.
    step_s, time_s, rest_s = everyone.unbind(1)
    outside_s = step_s.amax(0) - time_s.amax(0)
    return _Times(float(outside_s.min()), float(rest_s[0].min()))


# The rank that communicates with the service.
_LEADER: Final = 0
# Number of values of a rank in the all-gather; float64 represents counts exactly.
_FIELDS: Final = 8
_STEPS_KEPT: Final = 16
# Number of first reports that contain sizes and costs; more than one, because reports may be
# dropped.
_FIRST_REPORTS: Final = 10


@dataclass(frozen=True, slots=True)
class Consent:
    """The limits that the job's code sets for plans; no server can raise them."""

    apply: bool = False  # whether plans are applied; otherwise, times are only reported
    # Maximum share of a rank's columns that a step may leave out, 0 to 1. With 0, only plans
    # without loss are applied.
    max_gamma: float = 0.25


@dataclass(frozen=True, slots=True)
class _Row:
    """The values of one rank at a step boundary."""

    step: int
    time_s: float
    matmul_s: float
    computed: float
    left: int
    offered: int
    offer_bytes: int
    expires_step: int


class Controller:
    """Connects a group with the service; call `step` on every rank after each optimizer step.

    The training never waits for the service. If the service is unavailable, the plan ends when it
    expires.

    Parameters
    ----------
    tp : TensorGroup
        A group with a watch, whose times are reported.
    costs : Costs, optional
        Result of `pre_test`; without it, the service assumes that sending is free.
    first_step : int
        Number of the first step, for a resumed job.
    timeout : datetime.timedelta, optional
        Time limit of the collectives of this controller, if the group's backend is not gloo.
    """

    def __init__(  # noqa: PLR0913 - the job's parts, and the service's
        self,
        workload: Workload,
        tp: TensorGroup,
        peer: Peer,
        consent: Consent | None = None,
        *,
        costs: Costs | None = None,
        first_step: int = 0,
        timeout: timedelta | None = None,
    ) -> None:
        self._workload = workload
        self._tp = tp
        self._peer = peer
        self._consent = consent or Consent()
        self._costs = costs
        self._step = self._first_step = first_step
        self._control = tp.process_group
        if dist.get_backend(tp.process_group) != "gloo":
            # The values stay on the CPU, so the group needs a backend for the CPU.
            self._control = dist.new_group(
                list(tp.ranks), timeout=timeout, backend="gloo", use_local_synchronization=True
            )
        self._service = Service(peer, tp.size) if tp.rank == _LEADER else None
        self._version = 0
        self._decided = 0
        self._expires_step = 0
        self._encoded: tuple[Offer, bytes] | None = None
        self._measured: deque[StepTime] = deque(maxlen=_STEPS_KEPT)
        self._collected: dict[int, dict[int, _Row]] = {}
        self._in_force: deque[tuple[int, int]] = deque(maxlen=_STEPS_KEPT)
        # For each step, the share of its columns that this rank computed
        self._computed: deque[tuple[int, float]] = deque(maxlen=_STEPS_KEPT)
        # For each step, the rows of inputs; rows of earlier steps, such as those of a pre-test, are
        # discarded
        self._rows: deque[tuple[int, int]] = deque(maxlen=_STEPS_KEPT)
        workload.take_rows()
        self._began_s = time.perf_counter()
        self._step_s = 0.0

    @property
    def plan(self) -> Plan | None:
        """The plan that is applied at present."""
        return self._workload.plan

    @property
    def reports_dropped(self) -> int:
        """Number of reports that newer reports replaced before they could be sent."""
        return self._service.dropped if self._service is not None else 0

    def step(self) -> None:
        """End a step: report its times, and apply a new plan if there is one."""
        watch = self._tp.watch
        watch.end_step(self._step)
        now_s = time.perf_counter()
        self._step_s, self._began_s = now_s - self._began_s, now_s
        self._in_force.append((self._step, self._version))
        self._computed.append((self._step, self._workload.share))
        self._rows.append((self._step, self._workload.take_rows()))
        self._measured.extend(watch.finished())
        with watch.waiting():
            rows = self._gather()
            # After a device was delayed, all ranks skip the same number of steps.
            for _ in range(min(row.left for row in rows)):
                self._measured.popleft()
            self._decide(rows)
        self._report(rows)
        self._step += 1

    def close(self) -> None:
        """End the thread and the plan; all ranks call this together."""
        if self._service is not None:
            self._service.close()
        self._workload.apply(None)

    def _gather(self) -> list[_Row]:
        """Return the values of all ranks, exchanged with an all-gather."""
        measured = self._measured.popleft() if self._measured else StepTime(-1, 0.0, 0.0)
        offer = self._service.offer() if self._service is not None else None
        body = b""
        if offer is not None:
            if self._encoded is None or self._encoded[0] is not offer:
                document = plan_document(offer, self._peer.attempt)
                self._encoded = (offer, json.dumps(document).encode())
            body = self._encoded[1]
        mine = torch.tensor(
            [
                float(measured.step),
                measured.time_s,
                measured.matmul_s,
                dict(self._computed).get(measured.step, 1.0),
                float(len(self._measured)),
                float(offer.plan.version if offer is not None else 0),
                float(len(body)),
                float(offer.expires_step if offer is not None else 0),
            ],
            dtype=torch.float64,
        )
        rows = torch.empty(self._tp.size, _FIELDS, dtype=torch.float64)
        dist.all_gather(list(rows), mine, group=self._control)
        return [
            _Row(int(step), time_s, matmul_s, computed, *map(int, offer))
            for step, time_s, matmul_s, computed, *offer in rows.tolist()
        ]

    def _decide(self, rows: list[_Row]) -> None:
        """Apply the plan that the first rank offers, or end an expired plan."""
        leader = rows[_LEADER]
        following = self._step + 1
        if leader.offered > self._decided:
            self._adopt(leader)
        elif leader.offered and leader.offered == self._version:
            self._expires_step = max(self._expires_step, leader.expires_step)
        if self._workload.plan is not None and following >= self._expires_step:
            _log.warning("plan %d expired without renewal and ended", self._version)
            self._workload.apply(None)
            self._version = 0

    def _adopt(self, leader: _Row) -> None:
        """Read the offered plan on all ranks, and apply it if all ranks accept it."""
        body = torch.empty(leader.offer_bytes, dtype=torch.uint8)
        if self._tp.rank == _LEADER and self._encoded is not None:
            body = torch.frombuffer(bytearray(self._encoded[1]), dtype=torch.uint8)
        dist.broadcast(body, self._tp.ranks[_LEADER], group=self._control)
        self._decided = leader.offered
        offer, reason = self._validate(bytes(body.tolist()))
        agreed = torch.tensor([int(offer is not None)])
        dist.all_reduce(agreed, dist.ReduceOp.MIN, group=self._control)
        if offer is None or not int(agreed):
            reason = reason or "another rank of the group cannot apply it"
            _log.warning("plan %d is not applied: %s", leader.offered, reason)
            self._acknowledge(leader.offered, reason)
            return
        if not offer.applies:
            self._workload.apply(None)
            self._version = 0
            return
        self._workload.apply(offer.plan)
        self._version = offer.plan.version
        self._expires_step = offer.expires_step
        self._acknowledge(leader.offered, None)

    def _validate(self, body: bytes) -> tuple[Offer | None, str | None]:
        """Return the offered plan, or the reason why this rank refuses it."""
        try:
            offer = read_plan(json.loads(body), self._peer.attempt, self._tp.size)
        except (PlanError, ValueError) as error:
            return None, str(error)
        if not offer.applies:
            return offer, None
        if not self._consent.apply:
            return None, "the job's code does not allow plans"
        if offer.plan.gamma > self._consent.max_gamma:
            return None, (
                f"gamma = {offer.plan.gamma:.3f} exceeds the {self._consent.max_gamma:g} that the "
                "job's code allows"
            )
        if offer.plan.method is Method.STICKY and not self._workload.has_hidden_units:
            return None, "no layer of this model has hidden units that can move"
        return offer, None

    def _acknowledge(self, version: int, reason: str | None) -> None:
        if self._service is not None:
            applied = reason is None
            self._service.acknowledge(Acknowledgement(version, self._step + 1, applied, reason))

    def _report(self, rows: list[_Row]) -> None:
        """Report the times of the newest step for which the times of all ranks are known."""
        if self._service is None:
            return
        for rank, row in enumerate(rows):
            if row.step >= 0:
                self._collected.setdefault(row.step, {})[rank] = row
        complete = [
            step for step, by_rank in self._collected.items() if len(by_rank) == self._tp.size
        ]
        if not complete:
            return
        newest = max(complete)
        by_rank = self._collected[newest]
        self._collected = {step: rest for step, rest in self._collected.items() if step > newest}
        version = dict(self._in_force).get(newest, 0)
        ranks = range(self._tp.size)
        methods = [
            method.value
            for method in Method
            if method is not Method.NONE
            and (method is not Method.STICKY or self._workload.has_hidden_units)
        ]
        self._service.report(
            {
                "attempt": self._peer.attempt,
                "world_size": self._tp.size,
                "step": newest,
                "columns": self._workload.columns,
                "max_gamma": self._consent.max_gamma,
                "apply": self._consent.apply,
                "methods": methods,
                "times_s": [by_rank[rank].time_s for rank in ranks],
                "matmul_s": [by_rank[rank].matmul_s for rank in ranks],
                "measured_step_s": self._step_s,
                "plan_version": version or None,
                # Differs from the plan if a layer has few units, such as eight heads.
                "computed": [by_rank[rank].computed for rank in ranks] if version else None,
                "known_version": self._decided,
                "ranks": list(self._tp.ranks),
                **self._sizes_and_costs(newest),
            }
        )

    def _sizes_and_costs(self, step: int) -> dict[str, object]:
        """Return costs and sizes if this is one of the first reports; the service stores them."""
        rows = dict(self._rows).get(step, 0)
        if self._step >= self._first_step + _FIRST_REPORTS:
            return {}
        document: dict[str, object] = {}
        if rows:
            document["sizes"] = self._workload.sizes(rows)
        if self._costs is not None:
            document["costs"] = self._costs.document()
        return document
