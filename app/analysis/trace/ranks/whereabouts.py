"""What metadata say of where ranks run, in addition to `hosts` and `gpus`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from app.analysis.trace.ranks.machine import Machine, uuid_in
from app.analysis.trace.ranks.values import (
    is_name,
    mapping_of,
    names_by_rank,
    refuse,
    shown,
    text_of,
)

# OpenTelemetry's names. By rank, or one text for all ranks of a body.
NODE: Final = "k8s.node.name"
POD: Final = "k8s.pod.name"
NAMESPACE: Final = "k8s.namespace.name"
GPU: Final = "hw.id"
SLURM_JOB: Final = "slurm.job.id"
OTEL_KEYS: Final = (NODE, POD, NAMESPACE, GPU, SLURM_JOB)
# More is said of no launcher, and of no session's guesses than a host a rank.
MAX_LAUNCHER_KEYS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where ranks run, as far as the metadata say; every mapping may be incomplete."""

    guessed_hosts: dict[str, str] = field(default_factory=dict)
    """Hosts whose names are guesses, with where they come from: in a container, ``hostname``."""
    pods: dict[int, str] = field(default_factory=dict)
    """Pod of each global rank, with its namespace where that is known."""
    gpu_uuids: dict[int, str] = field(default_factory=dict)
    """UUID of the GPU of each global rank, with ``GPU-`` or ``MIG-``."""
    gpu_pci: dict[int, str] = field(default_factory=dict)
    """PCI address of the GPU of each global rank."""
    local_ranks: dict[int, int] = field(default_factory=dict)
    """Number of each global rank on its node."""
    launcher: dict[str, str] = field(default_factory=dict)
    """Launcher: ``name``, ``job``, ``restart``, ``step``."""

    def document(self) -> dict[str, Any]:
        """Return the keys of metadata that say this again."""
        said = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: {str(key): value for key, value in mapping.items()}
            for name, mapping in said.items()
            if mapping
        }

    def machine(self, rank: int, hosts: Mapping[int, str], gpus: Mapping[int, str]) -> Machine:
        """Return the machine of a rank."""
        node, gpu = hosts.get(rank), gpus.get(rank)
        return Machine(
            node=node,
            guessed=node in self.guessed_hosts,
            gpu=gpu,
            uuid=self.gpu_uuids.get(rank) or uuid_in(gpu),
            pci=self.gpu_pci.get(rank),
            pod=self.pods.get(rank),
            local_rank=self.local_ranks.get(rank),
        )


NOWHERE: Final = Whereabouts()
KEYS: Final = frozenset(item.name for item in fields(Whereabouts))


def parse_whereabouts(
    document: Mapping[Any, Any], world: int, hosts: dict[int, str]
) -> tuple[dict[int, str], Whereabouts]:
    """Return the hosts of ranks, with what OpenTelemetry's names add, and the rest.

    Raises
    ------
    InvalidMetadataError
        `metadata.bad_value`, `metadata.rank_out_of_range`; `metadata.conflict`: two keys name
        different machines for a rank.
    """
    if not any(key in document for key in (*KEYS, *OTEL_KEYS)):
        return hosts, NOWHERE
    guesses = _texts(document, "guessed_hosts")
    nodes = _otel(document, NODE, world)
    hosts = dict(sorted({**hosts, **_agreeing(NODE, nodes, hosts, guesses)}.items()))
    spaces = _otel(document, NAMESPACE, world)
    named = {
        rank: _in_namespace(pod, spaces.get(rank))
        for rank, pod in _otel(document, POD, world).items()
    }
    pods = names_by_rank(document, "pods", world)
    uuids = names_by_rank(document, "gpu_uuids", world)
    in_use = set(hosts.values()) if guesses else set()
    return hosts, Whereabouts(
        guessed_hosts={host: why for host, why in guesses.items() if host in in_use},
        pods={**pods, **_agreeing(POD, named, pods)},
        gpu_uuids={**uuids, **_agreeing(GPU, _otel(document, GPU, world), uuids)},
        gpu_pci=names_by_rank(document, "gpu_pci", world),
        local_ranks=_numbers(document, "local_ranks", world),
        launcher=_launcher(document),
    )


def _otel(document: Mapping[Any, Any], key: str, world: int) -> dict[int, str]:
    """Return what a key says by rank; a text for a whole body waits for its ranks."""
    by_rank = isinstance(document.get(key), Mapping)
    return names_by_rank(document, key, world) if by_rank else {}


def _agreeing(
    key: str,
    added: Mapping[int, str],
    known: Mapping[int, str],
    guesses: Mapping[str, str] | None = None,
) -> Mapping[int, str]:
    for rank, name in added.items():
        other = known.get(rank, name)
        if other != name and other not in (guesses or {}):
            message = f"{key} of rank {rank} is {shown(name)}, another key says {shown(other)}"
            refuse(message, "conflict", column=key)
    return added


def _in_namespace(pod: str, space: str | None) -> str:
    whole = f"{space}/{pod}"
    return whole if space and "/" not in pod and is_name(whole) else pod


def _texts(document: Mapping[Any, Any], key: str) -> dict[str, str]:
    return {
        text_of(name, key): text_of(value, key) for name, value in mapping_of(document, key).items()
    }


def _numbers(document: Mapping[Any, Any], key: str, world: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for rank, text in names_by_rank(document, key, world).items():
        if not (text.isascii() and text.isdecimal() and len(text) <= len(str(world))):
            refuse(
                f"{key} of rank {rank} is no whole number below {world}", "bad_value", column=key
            )
        found[rank] = int(text)
    return found


def _launcher(document: Mapping[Any, Any]) -> dict[str, str]:
    said = _texts(document, "launcher")
    if len(said) > MAX_LAUNCHER_KEYS:
        refuse(f"launcher has over {MAX_LAUNCHER_KEYS} keys", "bad_value", column="launcher")
    job = document.get(SLURM_JOB)
    if job is None or said.get("name", "slurm") != "slurm":
        return said
    if isinstance(job, Mapping):
        # the same of all ranks
        job = next(iter(job.values()), None)
    name = text_of(job, SLURM_JOB)
    if said.get("job", name) != name:
        message = f"{SLURM_JOB} is {shown(name)}, launcher says {shown(said['job'])}"
        refuse(message, "conflict", column=SLURM_JOB)
    return {"name": "slurm", **said, "job": name}


def names_of_body(extra: Mapping[str, Any]) -> dict[str, str]:
    """Return OpenTelemetry's names that metadata give once, for all ranks of a body."""
    said = {key: extra.get(key) for key in (NODE, POD, NAMESPACE, GPU)}
    return {key: name for key, name in said.items() if isinstance(name, str) and is_name(name)}
