"""Identity of this process from its environment: run, machine, launcher and labels."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# Launchers, sorted from the outermost to the innermost: name, and the variables with the job's
# name, its number of restarts and its step.
_LAUNCHERS: Final = (
    ("slurm", "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID"),
    ("torchelastic", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", ""),
)
_EXPLICIT_RUN: Final = ("PACELINE_RUN_ID", "PACELINE_RESTART")
# torchrun's values for a run without a name.
_UNNAMED: Final = frozenset({"", "none"})
# Variables with the name of the node outside the container, in order of precedence.
_NODE: Final = ("PACELINE_NODE", "K8S_NODE_NAME", "NODE_NAME", "SLURMD_NODENAME")
_POD: Final = ("K8S_POD_NAME", "POD_NAME", "HOSTNAME")
_NAMESPACE: Final = ("K8S_NAMESPACE_NAME", "POD_NAMESPACE")
_NAMESPACE_FILE: Final = "var/run/secrets/kubernetes.io/serviceaccount/namespace"
_IN_KUBERNETES: Final = "KUBERNETES_SERVICE_HOST"
_LOCAL_RANK: Final = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
# Files that container runtimes create, and words in the control groups of their processes.
_CONTAINER_FILES: Final = (".dockerenv", "run/.containerenv")
_CONTAINER_GROUPS: Final = ("docker", "kubepods", "containerd", "libpod", "lxc")
# Labels of a job that its scheduler provides, and the variables with their values.
_LABELS: Final = (
    ("owner", ("SLURM_JOB_USER",)),
    ("account", ("SLURM_JOB_ACCOUNT",)),
    ("partition", ("SLURM_JOB_PARTITION",)),
)
# Maximum length in characters of a name; the server refuses longer names.
_MAX_CHARS: Final = 255


@dataclass(frozen=True)
class Run:
    """One start of a job by its launcher; the server numbers the runs of a job as attempts."""

    run_id: str  # the same on all ranks
    restart: int = 0  # restarts within the run, from 0

    def document(self) -> dict[str, str | int]:
        """Return the run as a document for the server."""
        return {"run_id": self.run_id, "restart": self.restart}


def run_from_environment(environment: Mapping[str, str] = os.environ, *, once: bool = False) -> Run:
    """Return the run of ``PACELINE_RUN_ID``, Slurm or torchrun.

    If none of these counts restarts, or with `once`, every call returns a new run; the ranks then
    have to agree on the run of one rank.
    """
    variables = [launcher[1:3] for launcher in _LAUNCHERS]
    if environment.get(_EXPLICIT_RUN[0]):
        variables = [_EXPLICIT_RUN]
    names: list[str] = []
    counts: list[str] = []
    for name_key, restart_key in variables:
        name = environment.get(name_key, "")
        count = environment.get(restart_key, "")
        if name.lower() not in _UNNAMED:
            names.append(name)
        if count.isdecimal():
            counts.append(count)
    if once or not counts or not names:
        names.append(uuid.uuid4().hex[:12])
    # A restart of the outer launcher resets the restart count of the inner launcher.
    return Run("/".join([*names, *counts[:-1]]), int(counts[-1]) if counts else 0)


@dataclass(frozen=True)
class Machine:
    """The machine of a process according to its environment."""

    node: str
    # Whether `node` is the hostname of a container, which may differ from the node's name.
    guessed: bool = False
    pod: str | None = None  # with its namespace, if known: ``ml/llama-worker-3``
    local_rank: int | None = None

    def document(self, rank: int) -> dict[str, Any]:
        """Return the metadata of a rank on this machine for the server."""
        key = str(rank)
        meta: dict[str, Any] = {"hosts": {key: self.node}}
        if self.guessed:
            meta["guessed_hosts"] = {self.node: "hostname"}
        if self.pod is not None:
            meta["pods"] = {key: self.pod}
        if self.local_rank is not None:
            meta["local_ranks"] = {key: self.local_rank}
        return meta


def machine_of(
    environment: Mapping[str, str] = os.environ,
    *,
    hostname: str | None = None,
    root: Path = Path("/"),
) -> Machine:
    """Return the machine of this process; never raises for invalid variables.

    Parameters
    ----------
    hostname : str, optional
        Name of the host; by default that of the system.
    root : Path
        Folder below which the system's files are read.

    Examples
    --------
    >>> machine_of({"K8S_NODE_NAME": "node-7", "LOCAL_RANK": "3"}).document(11)
    {'hosts': {'11': 'node-7'}, 'local_ranks': {'11': 3}}
    """
    hostname = _name(socket.gethostname() if hostname is None else hostname) or "unknown"
    node = _first(environment, _NODE)
    local = _first(environment, _LOCAL_RANK)
    pod = None
    if _IN_KUBERNETES in environment:
        pod = _first(environment, _POD) or hostname
        namespace = _namespace(environment, root)
        pod = _name(f"{namespace}/{pod}" if namespace else pod) or pod
    return Machine(
        node=node or hostname,
        guessed=node is None and in_container(environment, root),
        pod=pod,
        local_rank=int(local) if local is not None and local.isdecimal() else None,
    )


def launcher_of(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the outermost launcher with a job name, and its restart and step.

    Examples
    --------
    >>> launcher_of({"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"})
    {'name': 'slurm', 'job': '4711', 'step': '0'}
    """
    for name, *keys in _LAUNCHERS:
        values = [_name(environment.get(key)) for key in keys]
        fields = zip(("job", "restart", "step"), values, strict=True)
        launcher = {field: value for field, value in fields if value is not None}
        if launcher.get("job", "") not in _UNNAMED:
            return {"name": name, **launcher}
    return {}


def labels_of(
    environment: Mapping[str, str] = os.environ, *, root: Path = Path("/")
) -> dict[str, str]:
    """Return the labels that the job's scheduler provides: owner, account, partition, namespace.

    Examples
    --------
    >>> labels_of({"SLURM_JOB_USER": "ada", "SLURM_JOB_PARTITION": "h100"})
    {'owner': 'ada', 'partition': 'h100'}
    """
    labels = {
        label: value for label, keys in _LABELS if (value := _first(environment, keys)) is not None
    }
    namespace = _namespace(environment, root) if _IN_KUBERNETES in environment else None
    return labels if namespace is None else {**labels, "namespace": namespace}


def in_container(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> bool:
    """Return whether this process runs in a container."""
    if _IN_KUBERNETES in environment or environment.get("container"):
        return True
    if any((root / file).exists() for file in _CONTAINER_FILES):
        return True
    groups = _read(root / "proc/1/cgroup") + _read(root / "proc/self/cgroup")
    return any(word in groups for word in _CONTAINER_GROUPS)


def _namespace(environment: Mapping[str, str], root: Path) -> str | None:
    return _first(environment, _NAMESPACE) or _name(_read(root / _NAMESPACE_FILE))


def _first(environment: Mapping[str, str], keys: tuple[str, ...]) -> str | None:
    return next((name for key in keys if (name := _name(environment.get(key)))), None)


def _name(text: str | None) -> str | None:
    """Return the name if the server accepts it, else None."""
    name = (text or "").strip()
    return name if name and name.isprintable() and len(name) <= _MAX_CHARS else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
