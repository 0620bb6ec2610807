"""Names of operation types: the one name of each, whatever the recorder calls it.

An alias gets the published name, a `-nonoverlapping` form that of its overlapped twin. A fused
send and receive is one call that does two (or four) transfers over the same interval: it is split
into operations with that interval each. Which microbatch each half moves is not recorded, so their
microbatch and model chunk are absent and their order says which they are. Names that are still
unknown are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.analysis.trace.model import (
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD_RECV,
    FORWARD_SEND,
    OP_TYPE_ALIASES,
)

NONOVERLAPPING: Final = "-nonoverlapping"

FUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "forward-send-backward-recv": (FORWARD_SEND, BACKWARD_RECV),
    "backward-send-forward-recv": (BACKWARD_SEND, FORWARD_RECV),
    "forward-send-forward-recv": (FORWARD_SEND, FORWARD_RECV),
    "backward-send-backward-recv": (BACKWARD_SEND, BACKWARD_RECV),
    "forward-backward-send-forward-backward-recv": (
        FORWARD_SEND,
        BACKWARD_SEND,
        FORWARD_RECV,
        BACKWARD_RECV,
    ),
}

CROSS_MESH_SEND: Final = "cross-mesh-send"
CROSS_MESH_RECV: Final = "cross-mesh-recv"


def normalize(name: str) -> str:
    """Return the one name of the operation type that a recorder calls `name`."""
    base = name.removesuffix(NONOVERLAPPING)
    return OP_TYPE_ALIASES.get(base, base)
