"""Metis (github.com/SamsungLabs/Metis), a public peer planner, run as a program on our inputs.

Its formats are those of its README and of the programs that read them: a hostfile, a cluster file,
a folder of profiles, one for each type, tensor-parallel degree and batch size; a ranked list of
plans on standard output. What of a specification it cannot be told is refused with the reason.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from app.analysis.planning.problem import PlanningProblem
from app.analysis.planning.spec import WEIGHT_STATES, DeviceType, Spec
from app.analysis.planning.template import Template, number_nodes

PROGRAM: Final = "cost_het_cluster.py"
# The types that its program knows; ours take their names in turn.
TYPES: Final = ("A100", "V100", "P100", "T4")
# It reads one digit of a host's slots.
MOST_SLOTS: Final = 9
# Largest batch of one replica that it may choose; as in its README.
MOST_BATCH: Final = 4
_PERMUTE_LENGTH: Final = 4
_MIB: Final = 2**20
_GIB: Final = 2**30
_BYTES_PER_GB_MS: Final = 1e6
# Where the specification says nothing: a transfer that takes no time, a memory that never ends.
_NO_LIMIT: Final = 2**20
# It takes a difference of 0 between an iteration and its layers for a missing measurement.
_SYNC_MS: Final = 1e-3
_SAID: Final = 400
_HEADER: Final = "rank, cost, node_sequence"
_TYPE: Final = re.compile(r"<DeviceType\.(\w+): '[^']*'>")


class PeerError(Exception):
    """The peer cannot be run on this, or failed; the message says why."""


class NotExpressibleError(Exception):
    """A plan of the peer is no template of ours; the message says why."""


@dataclass(frozen=True, slots=True)
class PeerPlan:
    """A line of its list.

    `types` are its device types in the order in which ranks take them; `groups` devices of each
    stage; `strategies` (data-parallel, tensor-parallel) of each stage; `cuts` the first layer of
    each stage and, last, the end.
    """

    rank: int
    cost_ms: float
    types: tuple[str, ...]
    groups: tuple[int, ...]
    strategies: tuple[tuple[int, int], ...]
    batches: int
    cuts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PeerRun:
    """What a run brought, best plan first, and what it took."""

    plans: tuple[PeerPlan, ...]
    taken_s: float


def check_checkout(checkout: Path) -> None:
    """Refuse a folder that is no checkout.

    Raises
    ------
    PeerError
        With what is missing.
    """
    if not checkout.is_dir():
        raise PeerError(f"metis: there is no folder {checkout}")
    if not (checkout / PROGRAM).is_file():
        raise PeerError(f"metis: {checkout} is no checkout of Metis, it has no {PROGRAM}")


def run_metis(checkout: Path, spec: Spec, *, time_limit_s: float) -> PeerRun:
    """Plan a specification with a checkout.

    Raises
    ------
    PeerError
        It cannot be told the specification, failed, took too long, or found no plan.
    """
    check_checkout(checkout)
    check_spec(spec)
    with tempfile.TemporaryDirectory(prefix="paceline-peer-") as directory:
        folder = Path(directory)
        command = [sys.executable, "-B", PROGRAM, *write_inputs(spec, folder)]
        printed, said = folder / "printed.txt", folder / "said.txt"
        began = time.perf_counter()
        # Into files: it prints everything that it looks at.
        with printed.open("wb") as out, said.open("wb") as errors:
            try:
                done = subprocess.run(  # noqa: S603 - the checkout that the user named
                    command,
                    check=False,
                    cwd=checkout.resolve(),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=errors,
                    timeout=time_limit_s,
                )
            except subprocess.TimeoutExpired as error:
                raise PeerError(f"metis: no plan within {time_limit_s:.0f} s") from error
        taken_s = time.perf_counter() - began
        if done.returncode:
            last = said.read_text(encoding="utf-8", errors="replace").strip()[-_SAID:]
            raise PeerError(f"metis: ended with {done.returncode}: {last or 'no message'}")
        plans = parse_plans(printed.read_text(encoding="utf-8", errors="replace"))
    if not plans:
        raise PeerError("metis: it printed no plan")
    return PeerRun(plans, taken_s)


def check_spec(spec: Spec) -> None:
    """Refuse what its formats cannot say.

    Raises
    ------
    PeerError
        With the reason.
    """
    slots = {device.gpus_per_node for device in spec.devices}
    if len(spec.devices) > len(TYPES):
        raise PeerError(f"metis: it knows {len(TYPES)} types, the cluster has {len(spec.devices)}")
    if len(slots) > 1:
        raise PeerError("metis: it takes every node to have as many devices as the first")
    if max(slots) > MOST_SLOTS:
        raise PeerError(f"metis: it reads one digit of a node's devices, not {max(slots)}")


# ---- what it reads


def write_inputs(spec: Spec, folder: Path) -> list[str]:
    """Write its input files and return its arguments."""
    profiles = folder / "profile"
    profiles.mkdir()
    hosts: list[str] = []
    nodes: dict[str, dict[str, object]] = {}
    for kind, device in enumerate(spec.devices):
        for _ in range(device.nodes):
            address = f"10.0.{len(hosts) // 256}.{len(hosts) % 256}"
            hosts.append(f"{address} slots={device.gpus_per_node}\n")
            nodes[address] = _node(spec, kind)
        for degree in _degrees(spec):
            for batch in _batches(spec):
                name = f"DeviceType.{TYPES[kind]}_tp{degree}_bs{batch}.json"
                text = json.dumps(_profile(spec, device, degree, batch))
                (profiles / name).write_text(text, encoding="utf-8")
    (folder / "hostfile").write_text("".join(hosts), encoding="utf-8")
    (folder / "clusterfile.json").write_text(json.dumps(nodes, indent=1), encoding="utf-8")
    # It counts a microbatch × sequence × hidden as the bytes between two stages.
    width = max(1, round(statistics.median(layer.output_bytes for layer in spec.layers)))
    arguments = {
        "model_name": "GPT",
        "model_size": "specification",
        "num_layers": len(spec.layers),
        "gbs": spec.microbatches,
        "hidden_size": width,
        "sequence_length": 1,
        "vocab_size": width,
        "attention_head_size": 1,
        "hostfile_path": folder / "hostfile",
        "clusterfile_path": folder / "clusterfile.json",
        "profile_data_path": profiles,
        "max_profiled_tp_degree": _degrees(spec)[-1],
        "max_profiled_batch_size": MOST_BATCH,
        "min_group_scale_variance": 1,
        "max_permute_len": _PERMUTE_LENGTH,
        "home_dir": folder,
        "log_path": folder,
    }
    return [f"--{name}={value}" for name, value in arguments.items()]


def _node(spec: Spec, kind: int) -> dict[str, object]:
    memory = spec.devices[kind].memory_bytes
    return {
        "instance_type": TYPES[kind],
        "inter_bandwidth": _bandwidth(spec.network.inter_node_gbytes_per_s),
        "intra_bandwidth": _bandwidth(spec.network.intra_node_gbytes_per_s),
        "memory": _NO_LIMIT if memory is None else memory / _GIB,
    }


def _bandwidth(gbytes_per_s: float | None) -> float:
    """Return MiB a millisecond: it divides bytes by 2^20 of them and adds the quotient to ms."""
    return _NO_LIMIT if gbytes_per_s is None else gbytes_per_s * _BYTES_PER_GB_MS / _MIB


def _degrees(spec: Spec) -> list[int]:
    return [1 << k for k in range(spec.devices[0].gpus_per_node.bit_length())]


def _batches(spec: Spec) -> list[int]:
    """Return the batch sizes that it may look up: what it may choose, and powers of two.

    Where devices of a group differ it splits their common batch into powers of two.
    """
    most = spec.gpus * (MOST_BATCH + 1)
    powers = {1 << k for k in range(most.bit_length())}
    return sorted(powers | set(range(1, MOST_BATCH + 1)))


def _profile(spec: Spec, device: DeviceType, degree: int, batch: int) -> dict[str, object]:
    """Return a profile; nothing says that microbatches are cheaper together."""
    times = spec.times_of(device)
    reduced = spec.network.allreduce_in_node_ms or ({},) * len(spec.layers)
    compute = [
        batch * ((forward + backward) / degree + (2 * row.get(degree, 0.0) if degree > 1 else 0.0))
        for forward, backward, row in zip(times.forward_ms, times.backward_ms, reduced, strict=True)
    ]
    parameters = [layer.parameter_bytes for layer in spec.layers]
    memory = [
        (WEIGHT_STATES * layer.parameter_bytes + batch * layer.stored_activation_bytes)
        / degree
        / _MIB
        for layer in spec.layers
    ]
    whole = sum(compute) + _SYNC_MS
    return {
        "model": {
            "model_name": "GPT",
            "num_layers": len(spec.layers),
            "parameters": {
                "total_parameters_bytes": sum(parameters),
                "parameters_per_layer_bytes": parameters,
                "activation_parameters_bytes": [layer.output_bytes for layer in spec.layers],
            },
        },
        "execution_time": {
            "total_time_ms": whole,
            "forward_backward_time_ms": whole,
            "batch_generator_time_ms": 0.0,
            "layernorm_grads_all_reduce_time_ms": 0.0,
            "embedding_grads_all_reduce_time_ms": 0.0,
            "optimizer_time_ms": 0.0,
            "layer_compute_total_ms": compute,
        },
        "execution_memory": {"total_memory_mb": sum(memory), "layer_memory_total_mb": memory},
    }


# ---- what it prints


def parse_plans(text: str) -> tuple[PeerPlan, ...]:
    """Return the ranked list behind its heading.

    Raises
    ------
    PeerError
        A line of the list does not read as one.
    """
    lines = iter(text.splitlines())
    if not any(line.startswith(_HEADER) for line in lines):
        raise PeerError("metis: it printed no list of plans")
    return tuple(_parse_plan(line) for line in lines if line.strip())


def _parse_plan(line: str) -> PeerPlan:
    try:
        rank, cost, types, groups, strategies, batches, cuts = ast.literal_eval(
            "[" + _TYPE.sub(r"'\1'", line) + "]"
        )
        return PeerPlan(
            rank=int(rank),
            cost_ms=float(cost),
            types=tuple(str(name) for name in types),
            groups=tuple(map(int, groups)),
            strategies=tuple((int(dp), int(tp)) for dp, tp in strategies),
            batches=int(batches),
            cuts=tuple(map(int, cuts)),
        )
    except (ValueError, SyntaxError, TypeError) as error:
        raise PeerError(f"metis: not a line of its list: {line[:80]!r}") from error


def translate(problem: PlanningProblem, found: PeerPlan) -> Template:
    """Return its plan as a template of ours, `problem` with replicated stages.

    Raises
    ------
    NotExpressibleError
        With the reason.
    """
    if found.cuts[0] != 0 or found.cuts[-1] != problem.layers:
        raise NotExpressibleError(f"it covers layers {found.cuts[0]} to {found.cuts[-1] - 1} only")
    if any(first >= end for first, end in pairwise(found.cuts)):
        raise NotExpressibleError("it has a stage without layers")
    places = list(_places(problem.spec, found.types))
    parts: list[tuple[int, int, int, bool]] = []
    begin, before = 0, None
    rows = zip(found.groups, found.strategies, pairwise(found.cuts), strict=True)
    for number, (size, strategy, (first, end)) in enumerate(rows):
        group = places[begin : begin + size]
        option = _option(problem, group, strategy, number)
        node = group[0][:2]
        parts.append((first, end, option, before == node and strategy[0] == 1))
        before, begin = group[-1][:2], begin + size
    return number_nodes(problem, parts)


def _places(spec: Spec, types: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield (type, node, position in the node) of its ranks."""
    for name in types:
        kind = TYPES.index(name)
        device = spec.devices[kind]
        for node in range(device.nodes):
            yield from ((kind, node, position) for position in range(device.gpus_per_node))


def _option(
    problem: PlanningProblem,
    group: list[tuple[int, int, int]],
    strategy: tuple[int, int],
    number: int,
) -> int:
    """Return on what a stage runs."""
    replicas, degree = strategy
    nodes = sorted({place[:2] for place in group})
    if replicas == 1:
        if len(nodes) > 1:
            raise NotExpressibleError(f"stage {number} splits its tensors over {len(nodes)} nodes")
        if group[0][2] % degree:
            raise NotExpressibleError(f"stage {number} starts within a pair of devices")
        return problem.option_index(group[0][0], degree)
    wanted = [0] * len(problem.spec.devices)
    for kind, _ in nodes:
        wanted[kind] += 1
    for index, option in enumerate(problem.options):
        whole = len(nodes) * problem.spec.devices[option.device].gpus_per_node == len(group)
        if whole and len(nodes) == replicas and option.nodes == tuple(wanted):
            return index
    raise NotExpressibleError(
        f"stage {number} has {replicas} replicas that are not {replicas} whole nodes"
    )


def describe(found: PeerPlan, spec: Spec) -> str:
    """Return a plan in a line: each stage's layers and devices."""
    names: dict[str, Any] = {TYPES[i]: device.name for i, device in enumerate(spec.devices)}
    places = [names[TYPES[kind]] for kind, _, _ in _places(spec, found.types)]
    begin, words = 0, []
    rows = zip(found.groups, found.strategies, pairwise(found.cuts), strict=True)
    for size, (replicas, degree), (first, end) in rows:
        kinds = sorted(set(places[begin : begin + size]), key=places.index)
        shape = f"{degree}" if replicas == 1 else f"{replicas}×{degree}"
        words.append(f"{first}–{end - 1} on {shape} {'+'.join(kinds)}")
        begin += size
    return "; ".join(words)
