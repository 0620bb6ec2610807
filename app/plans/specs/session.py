"""Specification of a whole job from a session's metadata and measured times.

Required metadata: ``model`` (the keys of a specification's transformer; layers may be those of
``layers``), ``global_batch_size``, ``seq_length``, ``hosts``, ``gpu_type`` (a text, or one by
global rank; else the names in ``gpus``). Optional: ``micro_batch_size``, ``recompute`` (default
``none``) and ``network`` (as in a specification).

Each node with a worker slower than its peers gets a device type for its speed; speeds are rounded
to limit the number of types.

Codes
-----
``plan.metadata_missing``   required metadata are missing, each a fault with its key
``plan.metadata_unfit``     metadata contradict one another, or are of a job that cannot be planned
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from app.analysis.mitigation.layers.costs import RunningJob
from app.analysis.planning.job.costs import alone_ms
from app.analysis.planning.job.spec import JobSpec, Parallelism, Recompute
from app.analysis.planning.spec import EVEN
from app.analysis.planning.transformer import find_device
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.parallelism import layers_per_chunk
from app.errors import Fault, InvalidSpecError
from app.plans.specs.job import MOST_TYPES
from app.plans.specs.spec import parse_any_spec

MISSING: Final = "plan.metadata_missing"
UNFIT: Final = "plan.metadata_unfit"
_SHAPE: Final = ("hidden", "heads", "vocabulary")
# Steps to which speeds of slow nodes are rounded: each speed is a device type of its own, so the
# first step that yields few enough types is used.
_ROUNDED: Final = (0.01, 0.05, 0.25)
# Metadata keys by the prefix of the specification's path, to name the metadata in a fault.
_PATHS: Final = {
    "model.transformer.": "model.",
    "global_batch": "global_batch_size",
    "as_it_runs.microbatch": "micro_batch_size",
    "as_it_runs.": "",
}


@dataclass(frozen=True, slots=True)
class SessionJob:
    """Whole job of a session, as described by its metadata."""

    meta: SessionMeta
    layers: tuple[tuple[int, ...], ...]  # layers of each chunk of each stage
    batch: int
    types: Mapping[str, str]  # GPU type by node
    gpus_per_node: int


def session_job(meta: SessionMeta) -> SessionJob:
    """Return the whole job that a session's metadata describe.

    Raises
    ------
    InvalidSpecError
        ``plan.metadata_missing``, ``plan.metadata_unfit``.
    """
    extra, sizes = meta.extra, meta.sizes
    model = extra.get("model")
    shape: Mapping[str, Any] = model if isinstance(model, Mapping) else {}
    layers = _layers(meta, shape)
    batch, types = extra.get("global_batch_size"), _gpu_types(meta)
    # Without hosts no node has a type, even if the metadata have types: only the hosts are missing.
    lacks_types = not types and (
        bool(meta.hosts) or not ("gpu_type" in extra or any(map(find_device, meta.gpus.values())))
    )
    missing = {
        "global_batch_size": "the sequences of a step" if not _count(batch) else "",
        "seq_length": "the tokens of a sequence" if not _count(_sequence(meta)) else "",
        "layers": "the layers of each stage" if layers is None else "",
        "gpu_type": "the type of GPU of each node" if lacks_types else "",
        "hosts": "" if _hosts_complete(meta) else "the node of each rank",
        **{
            f"model.{key}": f"the model's {key}" if not _count(shape.get(key)) else ""
            for key in _SHAPE
        },
    }
    faults = [
        Fault("missing", f"the metadata do not say {what}", column=key)
        for key, what in missing.items()
        if what
    ]
    if faults or layers is None or types is None or not isinstance(batch, int):
        names = ", ".join(str(fault.column) for fault in faults)
        raise _refused(f"the metadata lack {names}", MISSING, faults)
    each = Counter(meta.hosts.values())
    if len(set(each.values())) > 1:
        raise _unfit("hosts", "all nodes of a job need as many GPUs")
    if sizes.cp > 1:
        raise _unfit("cp", "jobs with context parallelism are not planned")
    container = next(iter(each.values())) * sizes.world // len(meta.hosts)
    return SessionJob(meta, layers, batch, types, container)


def spec_of_session(
    job: SessionJob, running: RunningJob, step_s: float, session: str | None = None
) -> dict[str, Any]:
    """Return the specification of a session's whole job, including its measured times.

    Parameters
    ----------
    step_s : float
        Mean recorded step time, seconds.

    Raises
    ------
    InvalidSpecError
        ``plan.metadata_unfit``.
    """
    meta, extra = job.meta, job.meta.extra
    microbatch = _microbatch(job, running)
    shape = {key: value for key, value in extra["model"].items() if key != "sequence"}
    transformer = {
        **shape,
        "layers": sum(map(sum, job.layers)),
        "sequence": _sequence(meta),
        "microbatch": microbatch,
    }
    speeds = _node_speeds(job, running)
    kinds = Counter((job.types[node], speed) for node, speed in speeds.items())
    recompute = str(extra.get("recompute", Recompute.NONE.value))
    sizes = meta.sizes
    document: dict[str, Any] = {
        "model": {"transformer": transformer},
        "devices": [
            {"type": name, "nodes": nodes, "gpus_per_node": job.gpus_per_node}
            for (name, _), nodes in _sorted(kinds)
        ],
        "global_batch": job.batch,
        **({"network": extra["network"]} if "network" in extra else {}),
        "as_it_runs": {
            "iteration_ms": step_s * 1e3,
            "tp": sizes.tp,
            "pp": sizes.pp,
            "dp": sizes.dp,
            "microbatch": microbatch,
            "recompute": recompute,
            "interleave": sizes.vpp,
            **({} if session is None else {"session": session}),
        },
    }
    for written, ((name, speed), _) in zip(document["devices"], _sorted(kinds), strict=True):
        if speed < 1:
            written["type"] = f"{name} at {speed:.2f}"
    spec = _read(document)
    ran = Parallelism(
        sizes.tp, sizes.pp, sizes.dp, microbatch, Recompute(recompute), interleave=sizes.vpp
    )
    transformer["measured"] = []
    for number, ((_, speed), _) in enumerate(_sorted(kinds)):
        device = spec.devices[number]
        if speed < 1:
            efficiency = round(device.efficiency * speed, 6)
            document["devices"][number]["efficiency"] = efficiency
            device = replace(device, efficiency=efficiency)
        forward_ms, backward_ms = alone_ms(
            spec, device, ran, running.forward_ms / speed, running.backward_ms / speed
        )
        transformer["measured"].append(
            {
                "type": device.name,
                "layer": 1,
                "forward_ms": forward_ms,
                "backward_ms": backward_ms,
            }
        )
    _read(document)
    return document


def _sorted(kinds: Counter[tuple[str, float]]) -> list[tuple[tuple[str, float], int]]:
    """Return ((type, speed), number of nodes), sorted by type, then by descending speed."""
    return sorted(kinds.items(), key=lambda item: (item[0][0], -item[0][1]))


def _read(document: dict[str, Any]) -> JobSpec:
    try:
        spec = parse_any_spec(document)
    except InvalidSpecError as error:
        faults = tuple(
            replace(fault, column=_metadata_path(fault.column or "")) for fault in error.faults
        )
        raise _refused(faults[0].message if faults else "", UNFIT, faults) from error
    assert isinstance(spec, JobSpec)  # noqa: S101 - the document has a global batch
    return spec


def _metadata_path(path: str) -> str:
    for begin, instead in _PATHS.items():
        if path.startswith(begin):
            return instead + path.removeprefix(begin)
    return path


def _unfit(key: str, message: str) -> InvalidSpecError:
    return _refused(message, UNFIT, [Fault("conflict", message, column=key)])


def _refused(reason: str, code: str, faults: Sequence[Fault]) -> InvalidSpecError:
    why = f": {reason}" if reason else ""
    return InvalidSpecError(
        f"The whole job cannot be planned{why}.", code=code, faults=tuple(faults)
    )


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _sequence(meta: SessionMeta) -> object:
    model = meta.extra.get("model")
    own = model.get("sequence") if isinstance(model, Mapping) else None
    return meta.extra.get("seq_length", own)


def _layers(meta: SessionMeta, shape: Mapping[str, Any]) -> tuple[tuple[int, ...], ...] | None:
    """Return the number of layers by stage and chunk, from the metadata or divided evenly."""
    sizes = meta.sizes
    given = layers_per_chunk(meta.extra, sizes.pp, sizes.vpp)
    if given is not None:
        return given
    each, rest = divmod(shape["layers"] if _count(shape.get("layers")) else 0, sizes.pp * sizes.vpp)
    return None if rest or not each else ((each,) * sizes.vpp,) * sizes.pp


def _hosts_complete(meta: SessionMeta) -> bool:
    """Return whether ``hosts`` has the nodes of all ranks, or of one rank in each TP group."""
    group_size = meta.sizes.tp * meta.sizes.cp
    groups = {rank // group_size for rank in meta.hosts}
    return len(meta.hosts) in {meta.sizes.world, meta.sizes.workers} and (
        len(groups) == meta.sizes.workers
    )


def _gpu_types(meta: SessionMeta) -> dict[str, str] | None:
    """Return the GPU type of each node; None unless the types of all nodes are known."""
    given = meta.extra.get("gpu_type")
    types: dict[str, str] = {}
    for rank, node in sorted(meta.hosts.items()):
        named = given.get(str(rank)) if isinstance(given, Mapping) else given
        if isinstance(named, str) and named:
            types.setdefault(node, named)
        elif named is None and (device := find_device(meta.gpus.get(rank, ""))) is not None:
            types.setdefault(node, device.name)
    complete = bool(types) and types.keys() == set(meta.hosts.values())
    return types if complete else None


def _microbatch(job: SessionJob, running: RunningJob) -> int:
    """Return the sequences per microbatch, checked against the metadata's ``micro_batch_size``."""
    shares = job.meta.sizes.dp * running.microbatches
    each, rest = divmod(job.batch, shares)
    given = job.meta.extra.get("micro_batch_size", each)
    if rest or given != each:
        raise _unfit(
            "micro_batch_size",
            f"{job.batch} sequences are not {job.meta.sizes.dp} pipelines × "
            f"{running.microbatches} microbatches of {given}",
        )
    return each


def _node_speeds(job: SessionJob, running: RunningJob) -> dict[str, float]:
    """Return the rounded speed of each node's slowest worker; 1 if no worker of a node is slow."""
    speeds = dict.fromkeys(job.types, 1.0)
    for rank, speed in running.speeds.items():
        group = job.meta.sizes.tp * job.meta.sizes.cp
        first = rank // group * group
        near: Sequence[int] = (rank, *range(first, first + group))
        node = next((job.meta.hosts[rank] for rank in near if rank in job.meta.hosts), None)
        if node is not None and speed < 1 - EVEN:
            speeds[node] = min(speeds[node], speed)
    rounded = speeds
    for step in _ROUNDED:
        rounded = {
            node: 1.0 if speed == 1 else max(round(round(speed / step) * step, 2), step)
            for node, speed in speeds.items()
        }
        if len({(job.types[node], speed) for node, speed in rounded.items()}) <= MOST_TYPES:
            break
    return rounded
