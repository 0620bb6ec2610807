"""Planning problem as integer arrays: the time of every possible stage, in picoseconds.

The time of each layer is rounded once (error below 1e-9 ms), so sums are exact and equal templates
have equal costs. An option is a set of devices that a stage can run on: devices of one type in a
node, or whole nodes that replicate the stage. Replicas divide the batch so that all of them end at
the same time: with replica times L_i, the stage takes 1 / Σ 1/L_i per microbatch. The replicas'
all-reduce of gradients runs once per iteration; its time is spread over the microbatches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.planning.spec import WEIGHT_STATES, Spec
from app.analysis.quantities import FloatArray, IntArray
from app.errors import Fault, InvalidSpecError

# Maximum number of replicas of a stage: the number of combinations grows quickly with the cluster.
MOST_REPLICAS: Final = 4
PS_PER_MS: Final = 10**9
PS_PER_BYTE_AT_1_GB_S: Final = 1000
# Time of an impossible stage: larger than any real time, and small enough that a sum of a few such
# times does not overflow.
NEVER: Final = np.int64(2**61)
LONGEST_PS: Final = 2**60

# Link between two stages: inside a node, or between nodes.
INSIDE: Final = 0
BETWEEN: Final = 1


def node_sets(nodes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield for a replicated stage each possible tuple of numbers of whole nodes, by type."""
    for chosen in itertools.product(*(range(min(n, MOST_REPLICAS) + 1) for n in nodes)):
        if 1 < sum(chosen) <= MOST_REPLICAS:
            yield chosen


def combined_cost(
    members: tuple[IntArray, IntArray], numbers: Sequence[int], *, sync_ps: IntArray
) -> tuple[IntArray, IntArray]:
    """Return forward and total time of stages on `numbers[i]` replicas of each type i, ps.

    Parameters
    ----------
    members : pair of int64 arrays, shape (types, layers + 1, layers + 1)
        Forward time, and forward with backward, of one replica of each type.
    sync_ps : int64 array, shape (layers + 1, layers + 1)
        Gradient synchronization of each stage for one microbatch.
    """
    forward, cost = (np.maximum(array, 1).astype(np.float64) for array in members)
    weights = np.array(numbers, dtype=np.float64)[:, None, None] / cost
    rate = weights.sum(axis=0)
    share_forward = (weights / rate * forward).sum(axis=0) / np.sum(numbers)
    total = np.rint(1 / rate).astype(np.int64)
    ahead = np.minimum(np.rint(share_forward).astype(np.int64), total)
    return ahead, total + sync_ps


@dataclass(frozen=True, slots=True)
class Option:
    """Devices of a stage: `gpus` of type `device` in one node, or `nodes[i]` whole nodes of type i.

    `nodes` is empty unless the stage is replicated; then `device` is the first type among them.
    """

    device: int
    gpus: int
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PlanningProblem:
    """Times and memory of every possible stage."""

    spec: Spec
    options: tuple[Option, ...]
    # (options, layers + 1, layers + 1), ``[option, b, a]``: time of layers [a, b) for one
    # microbatch without transfers. The first array is the forward time, the second forward and
    # backward; `NEVER` for empty stages.
    forward_ps: IntArray
    cost_ps: IntArray
    # (2, layers + 1), ``[INSIDE or BETWEEN, cut]``: time to receive the activations before layer
    # `cut`, and time to receive the gradients after layer `cut - 1`; 0 at the model's ends.
    input_ps: IntArray
    gradient_ps: IntArray
    # (options, layers + 1, layers + 1): memory of one device for a stage. The first array does not
    # depend on the microbatches in flight, the second is memory per microbatch in flight.
    static_bytes: FloatArray
    activation_bytes: FloatArray
    capacity_bytes: FloatArray  # (options,): memory of one device; infinite without a limit

    @property
    def layers(self) -> int:
        """Return the number of layers."""
        return len(self.spec.layers)

    @property
    def limited(self) -> bool:
        """Return whether any option has limited memory."""
        return bool(np.isfinite(self.capacity_bytes).any())

    def option_index(self, device: int, gpus: int) -> int:
        """Return the index of the option with `gpus` devices of a type in one node."""
        return self.options.index(Option(device, gpus))

    def stage_ps(self, option: int, first: int, end: int, left: int, right: int) -> int:
        """Return the time of layers [first, end) including transfers over both links, ps."""
        return int(
            self.cost_ps[option, end, first]
            + self.input_ps[left, first]
            + self.gradient_ps[right, end]
        )

    def memory_bytes(self, option: int, first: int, end: int, in_flight: int) -> float:
        """Return one device's memory for layers [first, end) and microbatches in flight, bytes."""
        return float(
            self.static_bytes[option, end, first]
            + min(self.spec.microbatches, in_flight) * self.activation_bytes[option, end, first]
        )


def compile_problem(spec: Spec, *, any_width: bool = False) -> PlanningProblem:
    """Return the planning problem of a specification.

    Parameters
    ----------
    any_width : bool
        Whether a stage may run on any number of devices of a node, as in Ditto's Algorithm 2, and
        not only on a power of two.

    Raises
    ------
    InvalidSpecError
        An iteration is too long or too short to count in 63 bits of picoseconds.
    """
    count = len(spec.layers)
    plain = [
        Option(i, gpus)
        for i, device in enumerate(spec.devices)
        for gpus in (
            range(1, device.gpus_per_node + 1) if any_width else powers_of_two(device.gpus_per_node)
        )
    ]
    forward = np.stack([_spans(_layer_ps(spec, o, forward=True)) for o in plain])
    backward = np.stack([_spans(_layer_ps(spec, o, forward=False)) for o in plain])
    cost = forward + backward
    longest = float(cost[:, -1, 0].max()) * (spec.microbatches + len(spec.layers) + 4)
    if not 0 < longest < LONGEST_PS:
        raise InvalidSpecError(
            "the times of the layers are too long or too short to plan with",
            faults=(
                Fault(
                    "time_out_of_range",
                    "an iteration on the slowest type must take between a picosecond and 13 days",
                    column="model.layers",
                ),
            ),
        )
    parameters = _float_spans(np.array([layer.parameter_bytes for layer in spec.layers]))
    stored = _float_spans(np.array([layer.stored_activation_bytes for layer in spec.layers]))
    gpus = np.array([option.gpus for option in plain], dtype=np.float64)[:, None, None]
    static, activation = WEIGHT_STATES * parameters[None] / gpus, stored[None] / gpus
    limits = (spec.devices[option.device].memory_bytes for option in plain)
    capacity = np.array([np.inf if limit is None else limit for limit in limits])
    options = list(plain)
    if spec.replicate:
        whole = {
            o.device: n
            for n, o in enumerate(plain)
            if (o.gpus == spec.devices[o.device].gpus_per_node)
        }
        for nodes in node_sets(tuple(device.nodes for device in spec.devices)):
            used = [i for i, number in enumerate(nodes) if number]
            if any(i not in whole for i in used):
                continue
            rows, numbers = [whole[i] for i in used], [nodes[i] for i in used]
            gbytes = spec.network.inter_node_gbytes_per_s
            both = combined_cost(
                (forward[rows], cost[rows]),
                numbers,
                sync_ps=_sync_ps(spec, sum(numbers), gbytes),
            )
            forward = np.concatenate([forward, both[0][None]])
            cost = np.concatenate([cost, both[1][None]])
            # Every replica holds the whole stage, so the replica with the least memory limits the
            # stage.
            tightest = min(rows, key=lambda row: float(capacity[row]))
            smallest = min(rows, key=lambda row: options[row].gpus)
            static = np.concatenate([static, static[smallest][None]])
            activation = np.concatenate([activation, activation[smallest][None]])
            capacity = np.append(capacity, capacity[tightest])
            options.append(Option(used[0], options[rows[0]].gpus, nodes))
    empty = ~np.tri(count + 1, k=-1, dtype=bool)
    cost[:, empty] = NEVER
    forward[:, empty] = NEVER
    outputs = np.array([layer.output_bytes for layer in spec.layers])
    transfer = np.zeros((2, count + 1), dtype=np.int64)
    network = spec.network
    speeds = (network.intra_node_gbytes_per_s, network.inter_node_gbytes_per_s)
    for link, gbytes in zip((INSIDE, BETWEEN), speeds, strict=True):
        if gbytes is not None:
            ps = np.rint(outputs * PS_PER_BYTE_AT_1_GB_S / gbytes)
            transfer[link, 1:-1] = np.minimum(ps, float(LONGEST_PS)).astype(np.int64)[:-1]
    return PlanningProblem(
        spec=spec,
        options=tuple(options),
        forward_ps=forward,
        cost_ps=cost,
        input_ps=transfer,
        gradient_ps=transfer,
        static_bytes=static,
        activation_bytes=activation,
        capacity_bytes=capacity,
    )


def powers_of_two(limit: int) -> list[int]:
    """Return the powers of two 1, 2, 4, … up to `limit`."""
    return [1 << k for k in range(limit.bit_length())]


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _layer_ps(spec: Spec, option: Option, *, forward: bool) -> IntArray:
    times = spec.times_of(spec.devices[option.device])
    ms = np.array(times.forward_ms if forward else times.backward_ms) / option.gpus
    table = spec.network.allreduce_in_node_ms
    if option.gpus > 1 and table:
        ms = ms + np.array([allreduce_ms(row, option.gpus) for row in table])
    return to_ps(ms)


def allreduce_ms(row: Mapping[int, float], gpus: int) -> float:
    """Return the all-reduce time of a layer on `gpus` devices of a node, ms.

    Times exist for powers of two; as in the program of Ditto's authors, other numbers of devices
    take as long as the next power of two.
    """
    return row.get(1 << (gpus - 1).bit_length(), 0.0) if gpus > 1 else 0.0


def to_ps(ms: FloatArray) -> IntArray:
    """Return times in whole picoseconds, at most `LONGEST_PS`."""
    return np.rint(np.minimum(ms * PS_PER_MS, float(LONGEST_PS))).astype(np.int64)


def _spans(per_layer: IntArray) -> IntArray:
    """Return the sums of `per_layer` over layers [a, b), ``[b, a]``, (layers + 1, layers + 1)."""
    total = np.concatenate([[0], np.cumsum(per_layer)])
    spans: IntArray = total[:, None] - total[None, :]
    return spans


def _float_spans(per_layer: FloatArray) -> FloatArray:
    total = np.concatenate([[0.0], np.cumsum(per_layer)])
    spans: FloatArray = total[:, None] - total[None, :]
    return spans


def _sync_ps(spec: Spec, replicas: int, gbytes: float | None) -> IntArray:
    """Return the time of a stage's ring all-reduce per microbatch, ps, ``[b, a]``."""
    count = len(spec.layers)
    if gbytes is None:
        return np.zeros((count + 1, count + 1), dtype=np.int64)
    parameters = _float_spans(np.array([layer.parameter_bytes for layer in spec.layers]))
    moved = 2 * (replicas - 1) / replicas * parameters
    ps = np.rint(moved * PS_PER_BYTE_AT_1_GB_S / gbytes / spec.microbatches)
    return np.clip(ps, 0.0, float(LONGEST_PS)).astype(np.int64)
