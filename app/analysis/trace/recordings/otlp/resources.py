"""Resources of OpenTelemetry: which rank of a job sent some spans, and where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from app.analysis.trace.faults import refuse_body
from app.analysis.trace.joint_metadata import with_names
from app.analysis.trace.model import SessionMeta, Sizes
from app.analysis.trace.ranks.values import is_name
from app.analysis.trace.ranks.whereabouts import NODE, OTEL_KEYS, POD
from app.analysis.trace.recordings.values import Event

_HOST: Final = "host.name"


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource: who it is, and the sizes that it says."""

    rank: int
    dp: int | None
    pp: int | None
    host: str | None
    names: Mapping[str, str]  # of node, pod, GPU and job
    sizes: Sizes | None


def resource_of(said: Event) -> Resource:
    """Return who a resource is.

    Parameters
    ----------
    said : Event
        Its attributes by their keys.

    Raises
    ------
    InvalidTraceError
        `trace.unknown_rank`, and those of `Event`.
    """
    rank = first_of(said, "dl.rank", "nv.dl.rank")
    if rank is None:
        refuse_body(
            "unknown_rank",
            "a resource does not say its rank: dl.rank is set by setup_telemetry, which is given "
            "the rank after torch.distributed.init_process_group",
        )
    sizes = [
        said.optional_integer(f"dl.{kind}_parallel.size") for kind in ("data", "pipeline", "tensor")
    ]
    world = first_of(said, "dl.world_size", "nv.dl.world_size")
    names = {
        key: name
        for key in (_HOST, *OTEL_KEYS)
        if isinstance(name := said.fields.get(key), str) and name and is_name(name)
    }
    return Resource(
        rank,
        said.optional_integer("dl.data_parallel.rank"),
        said.optional_integer("dl.pipeline_parallel.rank"),
        names.pop(_HOST, None),
        names,
        _sizes(sizes, world),
    )


def first_of(said: Event, *keys: str) -> int | None:
    """Return the integer of the first of some keys that is there."""
    values = (said.optional_integer(key) for key in keys)
    return next((value for value in values if value is not None), None)


def with_hosts(known: SessionMeta, resources: Mapping[int, Resource]) -> SessionMeta:
    """Return the metadata with what resources say of the machines of ranks.

    What the sender's metadata say comes first. The host of a resource in a pod may be the pod.
    """
    named: dict[str, dict[str, str]] = {}
    hosts: dict[int, str] = {}
    guesses: dict[str, str] = {}
    for rank, who in resources.items():
        if rank >= known.sizes.world:
            continue
        if who.host is not None and NODE not in who.names and rank not in known.hosts:
            hosts[rank] = who.host
            if POD in who.names:
                guesses[who.host] = _HOST
        for key, name in who.names.items():
            if key != NODE or rank not in known.hosts:
                named.setdefault(key, {})[str(rank)] = name
    guesses.update(known.whereabouts.guessed_hosts)
    met = replace(
        known,
        hosts={**hosts, **known.hosts},
        whereabouts=replace(known.whereabouts, guessed_hosts=guesses),
    )
    return with_names(met, named) if named else met


def _sizes(said: list[int | None], world: int | None) -> Sizes | None:
    """Return the sizes of a job; ranks that the three do not explain are context parallel."""
    dp, pp, tp = (1 if size is None else size for size in said)
    if all(size is None for size in said) or min(dp, pp, tp) < 1:
        return None
    cells = dp * pp * tp
    cp = 1 if world is None or world < 1 or world % cells else world // cells
    return Sizes(dp=dp, pp=pp, tp=tp, cp=cp)
