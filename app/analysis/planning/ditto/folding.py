"""Node folding: how many of the weakest devices each device is worth (the paper's section 5.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.analysis.planning.spec.model import DeviceType, Spec


@dataclass(frozen=True, slots=True)
class Folding:
    """The virtual cluster: `nodes` nodes of `gpus_per_node` devices of type `weakest`.

    `factors[i]` is what one device of type i is worth.
    """

    weakest: int
    factors: tuple[int, ...]
    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """Return the number of virtual devices."""
        return self.nodes * self.gpus_per_node


def fold(spec: Spec) -> Folding:
    """Fold the cluster, with communication if the specification says so."""
    totals = [_total_ms(spec, device) for device in spec.devices]
    weakest = max(range(len(totals)), key=lambda i: (totals[i], -i))
    heaviest = totals[weakest]
    factors = [max(math.floor(heaviest / total + 0.5), 1) for total in totals]
    if spec.fold_with_communication:
        factors = [
            _with_communication(spec, weakest, heaviest, total, most)
            for total, most in zip(totals, factors, strict=True)
        ]
    devices = sum(
        device.gpus * factor for device, factor in zip(spec.devices, factors, strict=True)
    )
    # Ditto knows one number of devices a node; where they differ, one that fits them all.
    per_node = math.gcd(*(device.gpus_per_node for device in spec.devices))
    return Folding(weakest, tuple(factors), devices // per_node, per_node)


def _total_ms(spec: Spec, device: DeviceType) -> float:
    times = spec.times_of(device)
    return math.fsum(times.forward_ms) + math.fsum(times.backward_ms)


def _with_communication(spec: Spec, weakest: int, heaviest: float, total: float, most: int) -> int:
    """Return the d of 1..most whose ``p(d)`` is closest to `total`."""
    per_node = spec.devices[weakest].gpus_per_node
    layers = len(spec.layers)
    across = math.fsum(spec.network.allreduce_across_ms) / layers

    def inside(devices: int) -> float:
        # as in the authors' program, a table for powers of two serves all numbers
        power = 1 << (devices - 1).bit_length() if devices > 1 else 0
        rows = spec.network.allreduce_in_node_ms
        return math.fsum(row.get(power, 0.0) for row in rows) / layers

    def p(d: int) -> float:
        whole, rest = divmod(d, per_node)
        communication = (rest * inside(rest) + whole * per_node * inside(per_node)) / d
        return heaviest / d + whole * across + layers * communication

    return min(range(1, most + 1), key=lambda d: (abs(p(d) - total), d))
