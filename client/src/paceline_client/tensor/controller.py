"""Reports a group's times and applies plans on all its ranks at the same step boundary.

At each boundary the ranks all-gather a few numbers: the times of each, and the plan that the first
rank has from the service. All ranks decide on the same numbers, so that all or none apply a plan.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from paceline_client.tensor.group import TensorGroup
from paceline_client.tensor.plan import Method, Plan, PlanError
from paceline_client.tensor.pretest import Costs
from paceline_client.tensor.service import (
    Acknowledgement,
    Offer,
    Peer,
    Service,
    plan_document,
    read_plan,
)
from paceline_client.tensor.watch import StepTime
from paceline_client.tensor.workload import Workload

_log = logging.getLogger("paceline_client")

_SPEAKER: Final = 0
# The numbers of a rank in the all-gather; float64 represents counts exactly.
_FIELDS: Final = 8
_STEPS_KEPT: Final = 16
# Reports that also contain sizes and costs; more than one, as reports may be dropped.
_FIRST_REPORTS: Final = 10


@dataclass(frozen=True, slots=True)
class Consent:
    """What the job's code allows; no server can raise it."""

    apply: bool = False  # whether plans are applied; otherwise, times are only reported
    # The largest share of a rank's columns that a step may leave out, 0 to 1. With 0, only plans
    # without loss are applied.
    max_gamma: float = 0.25


@dataclass(frozen=True, slots=True)
class _Row:
    """One rank's numbers at a boundary."""

    step: int
    time_s: float
    matmul_s: float
    computed: float
    left: int
    offered: int
    offer_bytes: int
    expires_step: int


class Controller:
    """Connects a group with the service. Call `step` on every rank after each optimizer step.

    The training never waits for the service. If it is unavailable, the plan ends when it expires.

    Parameters
    ----------
    tp : TensorGroup
        With a watch, whose times are reported.
    costs : Costs, optional
        Of a pre-test; without them, the service assumes that sending is free.
    first_step : int
        Number of the first step, for a resumed job.
    timeout : datetime.timedelta, optional
        Of the collective between the ranks, if the group's backend is not gloo.
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
            # The numbers stay on the CPU.
            self._control = dist.new_group(
                list(tp.ranks), timeout=timeout, backend="gloo", use_local_synchronization=True
            )
        self._service = Service(peer, tp.size) if tp.rank == _SPEAKER else None
        self._version = 0
        self._decided = 0
        self._expires_step = 0
        self._encoded: tuple[Offer, bytes] | None = None
        self._measured: deque[StepTime] = deque(maxlen=_STEPS_KEPT)
        self._collected: dict[int, dict[int, _Row]] = {}
        self._in_force: deque[tuple[int, int]] = deque(maxlen=_STEPS_KEPT)
        # The share of its columns that this rank computed in each step.
        self._computed: deque[tuple[int, float]] = deque(maxlen=_STEPS_KEPT)
        # Rows of inputs of each step; earlier ones, as of a pre-test, are discarded.
        self._rows: deque[tuple[int, int]] = deque(maxlen=_STEPS_KEPT)
        workload.take_rows()
        self._began_s = time.perf_counter()
        self._step_s = 0.0

    @property
    def plan(self) -> Plan | None:
        """The plan in force."""
        return self._workload.plan

    @property
    def reports_dropped(self) -> int:
        """Reports that were replaced by newer ones before they could be sent."""
        return self._service.dropped if self._service is not None else 0

    def step(self) -> None:
        """End a step: report its times, and apply a new plan."""
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
            # After a delay of one device, all ranks skip the same number of steps.
            for _ in range(min(row.left for row in rows)):
                self._measured.popleft()
            self._decide(rows)
        self._report(rows)
        self._step += 1

    def close(self) -> None:
        """End the thread and the plan, on all ranks together."""
        if self._service is not None:
            self._service.close()
        self._workload.apply(None)

    def _gather(self) -> list[_Row]:
        """Exchange the numbers of all ranks."""
        measured = self._measured.popleft() if self._measured else StepTime(-1, 0.0, 0.0)
        offer = self._service.offer() if self._service is not None else None
        body = self._body(offer)
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

    def _body(self, offer: Offer | None) -> bytes:
        if offer is None:
            return b""
        if self._encoded is None or self._encoded[0] is not offer:
            document = plan_document(offer, self._peer.attempt)
            self._encoded = (offer, json.dumps(document).encode())
        return self._encoded[1]

    def _decide(self, rows: list[_Row]) -> None:
        """Apply the plan that the first rank offers, or end an expired one."""
        speaker = rows[_SPEAKER]
        following = self._step + 1
        if speaker.offered > self._decided:
            self._take_over(speaker)
        elif speaker.offered and speaker.offered == self._version:
            self._expires_step = max(self._expires_step, speaker.expires_step)
        if self._workload.plan is not None and following >= self._expires_step:
            _log.warning("plan %d expired without renewal and ended", self._version)
            self._workload.apply(None)
            self._version = 0

    def _take_over(self, speaker: _Row) -> None:
        """Read the offered plan on all ranks, and apply it if all ranks can."""
        body = torch.empty(speaker.offer_bytes, dtype=torch.uint8)
        if self._tp.rank == _SPEAKER and self._encoded is not None:
            body = torch.frombuffer(bytearray(self._encoded[1]), dtype=torch.uint8)
        dist.broadcast(body, self._tp.ranks[_SPEAKER], group=self._control)
        self._decided = speaker.offered
        offer, reason = self._judge(bytes(body.tolist()))
        agreed = torch.tensor([int(offer is not None)])
        dist.all_reduce(agreed, dist.ReduceOp.MIN, group=self._control)
        if offer is None or not int(agreed):
            reason = reason or "another rank of the group cannot apply it"
            _log.warning("plan %d is not applied: %s", speaker.offered, reason)
            self._acknowledge(speaker.offered, reason)
            return
        if not offer.applies:
            self._workload.apply(None)
            self._version = 0
            return
        self._workload.apply(offer.plan)
        self._version = offer.plan.version
        self._expires_step = offer.expires_step
        self._acknowledge(speaker.offered, None)

    def _judge(self, body: bytes) -> tuple[Offer | None, str | None]:
        """Return the offer, or why this rank refuses it."""
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
        """Report the newest step whose times are known for all ranks."""
        if self._service is None:
            return
        for rank, row in enumerate(rows):
            if row.step >= 0:
                known = self._collected.setdefault(row.step, {})
                known[rank] = row
        whole = [step for step, known in self._collected.items() if len(known) == self._tp.size]
        if not whole:
            return
        newest = max(whole)
        known = self._collected[newest]
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
                "times_s": [known[rank].time_s for rank in ranks],
                "matmul_s": [known[rank].matmul_s for rank in ranks],
                "measured_step_s": self._step_s,
                "plan_version": version or None,
                # Differs from the plan where units are few, as eight heads.
                "computed": [known[rank].computed for rank in ranks] if version else None,
                "known_version": self._decided,
                "ranks": list(self._tp.ranks),
                **self._lasting(newest),
            }
        )

    def _lasting(self, step: int) -> dict[str, object]:
        """Return costs and sizes for one of the first reports; the service stores them."""
        rows = dict(self._rows).get(step, 0)
        if self._step >= self._first_step + _FIRST_REPORTS:
            return {}
        said: dict[str, object] = {}
        if rows:
            said["sizes"] = self._workload.sizes(rows)
        if self._costs is not None:
            said["costs"] = self._costs.document()
        return said
