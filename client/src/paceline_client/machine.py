"""Which machine a process runs on: node, pod, local rank and launcher, from its environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# A name of the node from outside of the container, the most explicit first.
_NODE: Final = ("PACELINE_NODE", "K8S_NODE_NAME", "NODE_NAME", "SLURMD_NODENAME")
_POD: Final = ("K8S_POD_NAME", "POD_NAME", "HOSTNAME")
_NAMESPACE: Final = ("K8S_NAMESPACE_NAME", "POD_NAMESPACE")
_NAMESPACE_FILE: Final = "var/run/secrets/kubernetes.io/serviceaccount/namespace"
_IN_KUBERNETES: Final = "KUBERNETES_SERVICE_HOST"
_LOCAL_RANK: Final = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
# Files that container runtimes create, and words in the control groups of their processes.
_MARKS: Final = (".dockerenv", "run/.containerenv")
_GROUPS: Final = ("docker", "kubepods", "containerd", "libpod", "lxc")
# Of each launcher, the outermost first: its variables for the job, its restarts and its step.
_LAUNCHERS: Final = (
    ("slurm", "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID"),
    ("torchelastic", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", ""),
)
# What schedulers say of a job that people filter by, and the variables that say it.
_LABELS: Final = (
    ("owner", ("SLURM_JOB_USER",)),
    ("account", ("SLURM_JOB_ACCOUNT",)),
    ("partition", ("SLURM_JOB_PARTITION",)),
)
# The server refuses longer names.
_MAX_CHARS: Final = 255


@dataclass(frozen=True)
class Machine:
    """A machine as far as a process's environment names it."""

    node: str
    # The name is the container's own; the node may have another one.
    guessed: bool = False
    pod: str | None = None  # with its namespace, if known: ``ml/llama-worker-3``
    local_rank: int | None = None

    def document(self, rank: int) -> dict[str, Any]:
        """Return the metadata of a rank on this machine."""
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
    """Return the machine of this process; never raises for what the environment contains.

    Parameters
    ----------
    hostname : str, optional
        By default that of the system.
    root : Path
        Folder with the system's files.

    Examples
    --------
    >>> machine_of({"K8S_NODE_NAME": "node-7", "LOCAL_RANK": "3"}).document(11)
    {'hosts': {'11': 'node-7'}, 'local_ranks': {'11': 3}}
    """
    own = _name(hostname if hostname is not None else socket.gethostname()) or "unknown"
    node = _first(environment, _NODE)
    local = _first(environment, _LOCAL_RANK)
    return Machine(
        node=node or own,
        guessed=node is None and in_container(environment, root),
        pod=_pod(environment, own, root) if _IN_KUBERNETES in environment else None,
        local_rank=int(local) if local is not None and local.isdecimal() else None,
    )


def launcher_of(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the outermost launcher that names its job, with its restarts and its step.

    Examples
    --------
    >>> launcher_of({"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"})
    {'name': 'slurm', 'job': '4711', 'step': '0'}
    """
    for name, *keys in _LAUNCHERS:
        values = [_name(environment.get(key)) for key in keys]
        said = zip(("job", "restart", "step"), values, strict=True)
        found = {what: value for what, value in said if value is not None}
        # torchrun's value for a run without a name
        if found.get("job", "none") != "none":
            return {"name": name, **found}
    return {}


def labels_of(
    environment: Mapping[str, str] = os.environ, *, root: Path = Path("/")
) -> dict[str, str]:
    """Return the labels that the scheduler gives the job: whose it is, and where it runs.

    Examples
    --------
    >>> labels_of({"SLURM_JOB_USER": "ada", "SLURM_JOB_PARTITION": "h100"})
    {'owner': 'ada', 'partition': 'h100'}
    """
    labels = {
        label: value for label, keys in _LABELS if (value := _first(environment, keys)) is not None
    }
    space = _namespace(environment, root) if _IN_KUBERNETES in environment else None
    return labels if space is None else {**labels, "namespace": space}


def in_container(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> bool:
    """Return whether this process sees a container around it."""
    if _IN_KUBERNETES in environment or environment.get("container"):
        return True
    if any((root / mark).exists() for mark in _MARKS):
        return True
    groups = _read(root / "proc/1/cgroup") + _read(root / "proc/self/cgroup")
    return any(word in groups for word in _GROUPS)


def _pod(environment: Mapping[str, str], own: str, root: Path) -> str:
    name = _first(environment, _POD) or own
    space = _namespace(environment, root)
    return _name(f"{space}/{name}" if space else name) or name


def _namespace(environment: Mapping[str, str], root: Path) -> str | None:
    return _first(environment, _NAMESPACE) or _name(_read(root / _NAMESPACE_FILE))


def _first(environment: Mapping[str, str], keys: tuple[str, ...]) -> str | None:
    return next((name for key in keys if (name := _name(environment.get(key)))), None)


def _name(text: str | None) -> str | None:
    """Return a name that the server accepts; None if this is none."""
    name = (text or "").strip()
    return name if name and name.isprintable() and len(name) <= _MAX_CHARS else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
