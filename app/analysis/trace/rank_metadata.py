"""Metadata of ranks: machine, host, GPU, pod, launcher, recorder, and links of the job.

A rank number does not identify a machine, because every restart may number ranks anew: a machine is
recognized by its GPU identifiers and host name. Links are web addresses with a host and without a
password: one user writes them and others follow them, so they may neither run a script nor leak a
secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from app.analysis.trace.limits import MAX_FAULTS, MAX_WORLD
from app.errors import Fault, InvalidMetadataError

MAX_NAME_CHARS: Final = 255


def names_by_rank(document: Mapping[Any, Any], key: str, world: int) -> dict[int, str]:
    """Return the names of ranks under a key of the metadata, by global rank.

    Raises
    ------
    InvalidMetadataError
        `metadata.bad_value`, `metadata.rank_out_of_range`.
    """
    names: dict[int, str] = {}
    for rank_key, value in mapping_of(document, key).items():
        text = str(rank_key)
        if isinstance(rank_key, bool) or not (text.isascii() and text.isdecimal()):
            refuse(f"{key} must be keyed by rank, not {shown(rank_key)}", "bad_value", column=key)
        # Very many digits are expensive to convert, and no valid rank has them.
        rank = int(text) if len(text) <= len(str(MAX_WORLD)) else MAX_WORLD
        if rank >= world:
            message = f"{key} names rank {shown(rank_key)}, the job has {world} ranks"
            refuse(message, "rank_out_of_range", column=key)
        names[rank] = text_of(value, key)
    return dict(sorted(names.items()))


def mapping_of(document: Mapping[Any, Any], key: str) -> Mapping[Any, Any]:
    """Return the mapping under a key; empty if the key is missing."""
    value = document.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        refuse(f"{key} must be a mapping, not {shown(value)}", "bad_value", column=key)
    return value


def text_of(value: object, key: str) -> str:
    """Return a metadata value as a name; numbers are converted to text."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        refuse(f"{key} must hold text, not {shown(value)}", "bad_value", column=key)
    text = value if isinstance(value, str) else shown(value)
    if not is_name(text):
        message = f"{key} must hold printable text of at most {MAX_NAME_CHARS} characters"
        refuse(message, "bad_value", column=key)
    return text


def is_name(text: str) -> bool:
    """Return whether a text is printable and short enough for a name."""
    return len(text) <= MAX_NAME_CHARS and text.isprintable()


def shown(value: object) -> str:
    """Return a short text of an untrusted value (Python refuses to print a huge int)."""
    try:
        text = repr(value)
    except ValueError:
        text = f"a number of {value.bit_length()} bits" if isinstance(value, int) else "a number"
    return text if len(text) <= 40 else f"{text[:37]}…"  # noqa: PLR2004 - a readable length


def refuse(
    message: str, code: str, *, line: int | None = None, column: str | None = None
) -> NoReturn:
    """Raise a metadata error with one fault."""
    refuse_all([Fault(code, message, line=line, column=column)])


def refuse_all(faults: list[Fault]) -> NoReturn:
    """Raise a metadata error with several faults and the code of the first fault."""
    first = faults[0]
    raise InvalidMetadataError(
        first.message, code=f"metadata.{first.code}", faults=tuple(faults[:MAX_FAULTS])
    )


KEY: Final = "links"
MAX_LINKS: Final = 16
MAX_ADDRESS_CHARS: Final = 1000
SCHEMES: Final = ("http", "https")


def parse_links(document: Mapping[object, object]) -> dict[str, str]:
    """Return the links of a metadata document, name → address.

    Raises
    ------
    InvalidMetadataError
        ``metadata.bad_link``
    """
    links = mapping_of(document, KEY)
    if len(links) > MAX_LINKS:
        refuse(f"there are {len(links)} links, and {MAX_LINKS} is the most", "bad_link", column=KEY)
    for name, address in links.items():
        problem = _link_problem(name, address)
        if problem is not None:
            refuse(f"the link {shown(name)} {problem}", "bad_link", column=KEY)
    return {str(name): str(address) for name, address in links.items()}


def valid_links(stored: object) -> dict[str, str]:
    """Return the valid links of a stored metadata document, at most `MAX_LINKS` of them.

    Links are checked on reading because the metadata of joined parts are not checked again, and
    older versions stored any value under the key.
    """
    if not isinstance(stored, Mapping):
        return {}
    valid = [
        (str(name), str(address))
        for name, address in stored.items()
        if _link_problem(name, address) is None
    ]
    return dict(valid[:MAX_LINKS])


def _link_problem(name: object, address: object) -> str | None:
    """Return the fault of a link as the end of a sentence; None for a valid link."""
    if not isinstance(name, str) or not name.strip() or not is_name(name):
        return "has no name of printable text"
    if not isinstance(address, str) or not address.isprintable() or set(address) & {" ", "\\"}:
        return f"is no address: {shown(address)}"
    if len(address) > MAX_ADDRESS_CHARS:
        return f"is longer than {MAX_ADDRESS_CHARS} characters"
    try:
        parts = urlsplit(address)
        whole = parts.port is None or bool(parts.hostname)
    except ValueError:
        whole = False
    if not whole or parts.scheme not in SCHEMES or not parts.hostname:
        return f"must be an address of http:// or https://, not {shown(address)}"
    return "must not hold a user name or a password" if "@" in parts.netloc else None


# Prefixes of NVIDIA's UUIDs of GPUs and of MIG partitions.
UUID_MARKS: Final = ("GPU-", "MIG-")
SHORT_UUID: Final = 12


@dataclass(frozen=True, slots=True)
class Machine:
    """Node and GPU of a rank, as far as known.

    Examples
    --------
    >>> before = Machine("node-7", gpu="3", uuid="GPU-5a3f")
    >>> Machine("node-7", gpu="0", uuid="GPU-5a3f").differs(before)
    False
    >>> Machine("llama-worker-9", guessed=True, uuid="GPU-5a3f").differs(before)
    False
    >>> Machine("node-8", gpu="3", uuid="GPU-5a3f").differs(before)
    True
    """

    node: str | None
    # The node's name may be the name of a container, which changes with each restart.
    guessed: bool = False
    gpu: str | None = None  # index on the node, or a name
    uuid: str | None = None  # whole UUID with its prefix ``GPU-`` or ``MIG-``
    pci: str | None = None  # PCI address
    pod: str | None = None  # pod name, with its namespace if known
    local_rank: int | None = None

    @property
    def called(self) -> str:
        """Return the node's display name, marked if it is a guess; empty if unknown."""
        return node_label(self.node, guessed=self.guessed) if self.node else ""

    def differs(self, before: Machine) -> bool:
        """Return whether the recorded names show another node or another GPU than `before`."""
        named = self.node and before.node and not (self.guessed or before.guessed)
        if named and self.node != before.node:
            return True
        if self.uuid and before.uuid:
            return self.uuid != before.uuid
        return bool(self.gpu and before.gpu) and self.gpu != before.gpu


@dataclass(frozen=True, slots=True)
class MovedGpu:
    """A GPU that was previously on another node."""

    rank: int
    """Global rank that runs on the GPU now."""
    uuid: str
    """UUID of the GPU."""
    before: str
    """Earlier node of the GPU."""
    last_seen: str
    """Time of its last session on the earlier node, UTC, ISO 8601."""


def node_label(node: str, *, guessed: bool) -> str:
    """Return the display name of a node, marked if it is a guess.

    Examples
    --------
    >>> node_label("llama-worker-9", guessed=True)
    'llama-worker-9 (guessed)'
    """
    return f"{node} (guessed)" if guessed else node


def short_uuid(uuid: str | None) -> str:
    """Return the first characters of a UUID, enough to distinguish the GPUs of a node.

    Examples
    --------
    >>> short_uuid("GPU-5a3f1c2e-0000-4000-8000-00000000000b"), short_uuid("GPU-a1")
    ('GPU-5a3f1c2e…', 'GPU-a1')
    """
    name = uuid or ""
    return name if len(name) <= SHORT_UUID else f"{name[:SHORT_UUID]}…"


def uuid_in(gpu: str | None) -> str | None:
    """Return a GPU's name if it is a UUID; some senders write UUIDs under the key for names.

    Examples
    --------
    >>> uuid_in("MIG-5a3f"), uuid_in("3")
    ('MIG-5a3f', None)
    """
    return gpu if gpu is not None and gpu.startswith(UUID_MARKS) else None


_KEY: Final = "recorded_by"
_HOST: Final = "host"
_DEVICE: Final = "device"
_WAITS: Final = "waits"


@dataclass(frozen=True, slots=True)
class Recorder:
    """Recording method of a session, as far as the recorder noted it."""

    on_host: bool = False  # operations ran on CPUs, and were timed by the host's clock
    # Collectives within a computation are recorded only for the time that the computation waits for
    # them.
    only_waits: bool = False


def recorder_of(extra: Mapping[str, Any]) -> Recorder:
    """Return the recording method from a session's `extra` metadata.

    Examples
    --------
    >>> recorder_of({"recorded_by": {"clock": "host", "inside": "waits"}})
    Recorder(on_host=True, only_waits=True)
    """
    recorder = extra.get(_KEY)
    if not isinstance(recorder, dict):
        return Recorder()
    return Recorder(
        on_host=recorder.get("clock") == _HOST, only_waits=recorder.get("inside") == _WAITS
    )


def recorder_metadata(*, on_host: bool) -> dict[str, dict[str, str]]:
    """Return `extra` metadata for a recorder of waits within computations; see `recorder_of`."""
    return {_KEY: {"clock": _HOST if on_host else _DEVICE, "inside": _WAITS}}


# OpenTelemetry's attribute keys. The value is a mapping by rank, or one text for all ranks of a
# body.
NODE: Final = "k8s.node.name"
POD: Final = "k8s.pod.name"
NAMESPACE: Final = "k8s.namespace.name"
GPU: Final = "hw.id"
SLURM_JOB: Final = "slurm.job.id"
OTEL_KEYS: Final = (NODE, POD, NAMESPACE, GPU, SLURM_JOB)
MAX_LAUNCHER_KEYS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Names of the ranks' machines beyond `hosts` and `gpus`; mappings may be incomplete."""

    guessed_hosts: dict[str, str] = field(default_factory=dict)
    """Guessed host name → source of the guess: in a container, ``hostname``."""
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
        """Return the non-empty mappings as keys of a metadata document."""
        return {
            item.name: {str(key): value for key, value in mapping.items()}
            for item in fields(self)
            if (mapping := getattr(self, item.name))
        }

    def machine(self, rank: int, hosts: Mapping[int, str], gpus: Mapping[int, str]) -> Machine:
        """Return the node and GPU of a rank."""
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
    """Return the hosts by rank, completed from OpenTelemetry's keys, and the other machine data.

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
    named: dict[int, str] = {}
    for rank, pod in _otel(document, POD, world).items():
        space = spaces.get(rank)
        whole = f"{space}/{pod}"
        named[rank] = whole if space and "/" not in pod and is_name(whole) else pod
    pods = names_by_rank(document, "pods", world)
    uuids = names_by_rank(document, "gpu_uuids", world)
    in_use = set(hosts.values()) if guesses else set()
    return hosts, Whereabouts(
        guessed_hosts={host: why for host, why in guesses.items() if host in in_use},
        pods={**pods, **_agreeing(POD, named, pods)},
        gpu_uuids={**uuids, **_agreeing(GPU, _otel(document, GPU, world), uuids)},
        gpu_pci=names_by_rank(document, "gpu_pci", world),
        local_ranks=_numbers(document, "local_ranks", world),
        launcher=_parse_launcher(document),
    )


def _otel(document: Mapping[Any, Any], key: str, world: int) -> dict[int, str]:
    """Return names by rank under an OpenTelemetry key; empty if one text names all ranks."""
    by_rank = isinstance(document.get(key), Mapping)
    return names_by_rank(document, key, world) if by_rank else {}


def _agreeing(
    key: str,
    added: Mapping[int, str],
    earlier: Mapping[int, str],
    guesses: Mapping[str, str] | None = None,
) -> Mapping[int, str]:
    """Return `added` after checking it: a name that contradicts `earlier` is refused.

    A guessed name in `earlier` may be contradicted.
    """
    for rank, name in added.items():
        other = earlier.get(rank, name)
        if other != name and other not in (guesses or {}):
            message = f"{key} of rank {rank} is {shown(name)}, another key says {shown(other)}"
            refuse(message, "conflict", column=key)
    return added


def _texts(document: Mapping[Any, Any], key: str) -> dict[str, str]:
    return {
        text_of(name, key): text_of(value, key) for name, value in mapping_of(document, key).items()
    }


def _numbers(document: Mapping[Any, Any], key: str, world: int) -> dict[int, int]:
    numbers: dict[int, int] = {}
    for rank, text in names_by_rank(document, key, world).items():
        if not (text.isascii() and text.isdecimal() and len(text) <= len(str(world))):
            refuse(
                f"{key} of rank {rank} is no whole number below {world}", "bad_value", column=key
            )
        numbers[rank] = int(text)
    return numbers


def _parse_launcher(document: Mapping[Any, Any]) -> dict[str, str]:
    launcher = _texts(document, "launcher")
    if len(launcher) > MAX_LAUNCHER_KEYS:
        refuse(f"launcher has over {MAX_LAUNCHER_KEYS} keys", "bad_value", column="launcher")
    job = document.get(SLURM_JOB)
    if job is None or launcher.get("name", "slurm") != "slurm":
        return launcher
    if isinstance(job, Mapping):
        # All ranks belong to the same Slurm job.
        job = next(iter(job.values()), None)
    name = text_of(job, SLURM_JOB)
    if launcher.get("job", name) != name:
        message = f"{SLURM_JOB} is {shown(name)}, launcher says {shown(launcher['job'])}"
        refuse(message, "conflict", column=SLURM_JOB)
    return {"name": "slurm", **launcher, "job": name}


def names_of_body(extra: Mapping[str, Any]) -> dict[str, str]:
    """Return the names by OpenTelemetry key that are given as one text for all ranks of a body."""
    names = {key: extra.get(key) for key in (NODE, POD, NAMESPACE, GPU)}
    return {key: name for key, name in names.items() if isinstance(name, str) and is_name(name)}
