"""Which machine a rank is. A rank is no identity: every restart may number ranks anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# What NVIDIA's names of a GPU, and of a part of one, begin with.
UUID_MARKS: Final = ("GPU-", "MIG-")
SHORT_UUID: Final = 12


@dataclass(frozen=True, slots=True)
class Machine:
    """The node and the GPU of a rank, as far as they are known.

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
    # the name may be that of a container, which a restart changes
    guessed: bool = False
    gpu: str | None = None  # the node's number of it, or a name
    uuid: str | None = None  # with ``GPU-`` or ``MIG-``, whole
    pci: str | None = None  # address
    pod: str | None = None  # with its namespace where that is known
    local_rank: int | None = None

    @property
    def called(self) -> str:
        """Return the name of the node as people read it; empty where it has none."""
        return called(self.node, guessed=self.guessed) if self.node else ""

    def differs(self, before: Machine) -> bool:
        """Return whether node or GPU are known to be others than before."""
        named = self.node and before.node and not (self.guessed or before.guessed)
        if named and self.node != before.node:
            return True
        if self.uuid and before.uuid:
            return self.uuid != before.uuid
        return bool(self.gpu and before.gpu) and self.gpu != before.gpu


@dataclass(frozen=True, slots=True)
class MovedGpu:
    """A GPU that was on another node before."""

    rank: int
    """Global rank that has it now."""
    uuid: str
    """Its UUID."""
    before: str
    """The node on which it was."""
    last_seen: str
    """When it was last seen there, UTC, ISO 8601."""


def called(node: str, *, guessed: bool) -> str:
    """Return the name of a node as people read it.

    Examples
    --------
    >>> called("llama-worker-9", guessed=True)
    'llama-worker-9 (guessed)'
    """
    return f"{node} (guessed)" if guessed else node


def short_uuid(uuid: str | None) -> str:
    """Return the beginning of a UUID, enough to tell GPUs of a node apart; empty for none.

    Examples
    --------
    >>> short_uuid("GPU-5a3f1c2e-0000-4000-8000-00000000000b"), short_uuid("GPU-a1")
    ('GPU-5a3f1c2e…', 'GPU-a1')
    """
    name = uuid or ""
    return name if len(name) <= SHORT_UUID else f"{name[:SHORT_UUID]}…"


def uuid_in(gpu: str | None) -> str | None:
    """Return the UUID that senders without a key for it gave as the GPU's name.

    Examples
    --------
    >>> uuid_in("MIG-5a3f"), uuid_in("3")
    ('MIG-5a3f', None)
    """
    return gpu if gpu is not None and gpu.startswith(UUID_MARKS) else None
