"""All templates of a small cluster, listed and priced without the planner's code."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from app.analysis.planning.spec import DeviceType, Layer, Network, Spec

PS_PER_MS = 10**9


@dataclass(frozen=True, slots=True)
class Piece:
    """Layers [first, end) on a number of devices of a type in one node."""

    first: int
    end: int
    kind: int
    gpus: int
    node: tuple[int, int]


def every_template(spec: Spec) -> Iterator[tuple[Piece, ...]]:
    """Yield every division of the model into stages, from the first layer on; some occur twice."""
    yield from _extend(spec, (), (0,) * len(spec.devices), None)


def _extend(
    spec: Spec, pieces: tuple[Piece, ...], used: tuple[int, ...], opened: tuple[int, int] | None
) -> Iterator[tuple[Piece, ...]]:
    if pieces and pieces[-1].end == len(spec.layers):
        everything = used == tuple(device.nodes for device in spec.devices)
        if spec.allow_idle or (everything and opened is None):
            yield pieces
    elif opened is None:
        for kind, device in enumerate(spec.devices):
            if used[kind] < device.nodes:
                more = tuple(n + (i == kind) for i, n in enumerate(used))
                yield from _extend(spec, pieces, more, (kind, 0))
    else:
        yield from _place(spec, pieces, used, *opened)


def _place(
    spec: Spec, pieces: tuple[Piece, ...], used: tuple[int, ...], kind: int, position: int
) -> Iterator[tuple[Piece, ...]]:
    total = spec.devices[kind].gpus_per_node
    layer = pieces[-1].end if pieces else 0
    if spec.allow_idle:
        behind = position + 1
        yield from _extend(spec, pieces, used, (kind, behind) if behind < total else None)
    for gpus in (1, 2, 4, 8):
        behind = position + gpus
        if position % gpus or behind > total:
            continue
        for end in range(layer + 1, len(spec.layers) + 1):
            piece = Piece(layer, end, kind, gpus, (kind, used[kind] - 1))
            after = (kind, behind) if behind < total else None
            yield from _extend(spec, (*pieces, piece), used, after)


def time_of(spec: Spec, piece: Piece, before: Piece | None, behind: Piece | None) -> int:
    """Return the time of a stage for one microbatch in ps."""
    network = spec.network
    factor = spec.profiled_speed / spec.devices[piece.kind].speed
    total = 0
    for j in range(piece.first, piece.end):
        layer = spec.layers[j]
        extra = 0.0
        if piece.gpus > 1 and network.allreduce_in_node_ms:
            extra = network.allreduce_in_node_ms[j].get(piece.gpus, 0.0)
        for ms in (layer.forward_ms, layer.backward_ms):
            total += round((ms * factor / piece.gpus + extra) * PS_PER_MS)
    for neighbor, cut in ((before, piece.first), (behind, piece.end)):
        if neighbor is not None:
            same = neighbor.node == piece.node
            speed = network.intra_node_gbytes_per_s if same else network.inter_node_gbytes_per_s
            if speed is not None:
                total += round(spec.layers[cut - 1].output_bytes * 1000 / speed)
    return total


def fits(spec: Spec, pieces: tuple[Piece, ...]) -> bool:
    for position, piece in enumerate(pieces):
        limit = spec.devices[piece.kind].memory_bytes
        if limit is None:
            continue
        in_flight = min(spec.microbatches, len(pieces) - position)
        rows = spec.layers[piece.first : piece.end]
        weights = 6 * sum(row.parameter_bytes for row in rows) / piece.gpus
        stored = sum(row.stored_activation_bytes for row in rows) / piece.gpus
        if weights + in_flight * stored > limit:
            return False
    return True


def costs(spec: Spec, pieces: tuple[Piece, ...]) -> tuple[int, int]:
    """Return t_std and t_oobleck in ps."""
    around = (None, *pieces, None)
    times = [time_of(spec, piece, around[i], around[i + 2]) for i, piece in enumerate(pieces)]
    n, s = spec.microbatches, len(times)
    standard = sum(times) + (n - 1) * max(times)
    if s == 1:
        return standard, 4 * times[0]
    k = max(range(s), key=lambda i: (times[i], i))
    return standard, sum(times) + (n - s + k + 1) * times[k] + sum(times[k:])


def optimum(spec: Spec) -> tuple[int, int] | None:
    """Return the least t_std and the least t_oobleck; None if no template fits."""
    found = {costs(spec, pieces) for pieces in every_template(spec) if fits(spec, pieces)}
    if not found:
        return None
    return min(a for a, _ in found), min(b for _, b in found)


def random_spec(seed: int) -> Spec:
    """Return a small cluster: types, nodes, devices a node, ties, all-reduce, memory, transfers."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    idle = draw.random() < 0.4
    count = draw.randint(2, 4 if idle else 6)
    ties = draw.random() < 0.5
    base = draw.choice([1.0, 7.5, 132.0])
    layers = []
    for _ in range(count):
        forward = base if ties else base * draw.uniform(0.05, 2.0)
        layers.append(
            Layer(
                forward_ms=forward,
                backward_ms=forward * draw.choice([1.0, 2.0, 3.0]),
                parameter_bytes=draw.randint(1, 50) * 1e6,
                output_bytes=draw.randint(1, 80) * 1e6,
                stored_activation_bytes=draw.randint(1, 60) * 1e6,
            )
        )
    limited = draw.random() < 0.4
    devices: list[DeviceType] = []
    for kind in range(draw.randint(1, 3)):
        gpus = draw.choice([1, 1, 2, 2, 4, 8 if kind == 0 else 2])
        nodes = draw.randint(1, 2)
        if sum(device.nodes for device in devices) + nodes > count:
            continue
        if sum(device.gpus for device in devices) + nodes * gpus > (8 if idle else 12):
            continue
        memory = draw.randint(150, 900) * 1e6 if limited and draw.random() < 0.7 else None
        speed = draw.choice([1.0, 1.0, 1.8, 2.15, 4.41])
        devices.append(DeviceType(f"type{kind}", nodes, gpus, speed, memory))
    if not devices:
        devices.append(DeviceType("type0", 1, draw.choice([1, 2, 3, 4, 8])))
    reduces = draw.random() < 0.4
    transfers = draw.random() < 0.4
    network = Network(
        intra_node_gbytes_per_s=draw.choice([None, 12.0, 1.0]) if transfers else None,
        inter_node_gbytes_per_s=draw.choice([3.0, 0.5]) if transfers else None,
        allreduce_in_node_ms=tuple(
            {2: draw.uniform(0, 5), 4: draw.uniform(0, 9), 8: draw.uniform(0, 20)}
            for _ in range(count if reduces else 0)
        ),
    )
    return Spec(
        layers=tuple(layers),
        profiled_speed=draw.choice([1.0, 2.94]),
        devices=tuple(devices),
        microbatches=draw.choice([8, 12, 50]),
        network=network,
        allow_idle=idle,
    )


def tight_spec(seed: int) -> Spec:
    """Return a random cluster in which the memory of activations often decides what fits."""
    spec = random_spec(seed)
    draw = random.Random(-seed)  # noqa: S311 - no secret
    layers = tuple(
        replace(
            layer,
            parameter_bytes=draw.uniform(1e5, 1e6),
            stored_activation_bytes=draw.uniform(0.5, 1.5) * 1e8,
        )
        for layer in spec.layers
    )
    # About the memory of a stage's share of the model, for as many microbatches as stages.
    stages = max(spec.nodes, 2)
    usual = sum(layer.stored_activation_bytes for layer in layers) / stages * (stages + 1) / 2
    devices = tuple(
        replace(
            device,
            gpus_per_node=min(device.gpus_per_node, 4),
            memory_bytes=usual * draw.uniform(0.5, 1.6),
        )
        for device in spec.devices
    )
    return replace(spec, layers=layers, devices=devices, microbatches=draw.choice([3, 8, 20]))
