"""Names of ranges that say which operation they are.

PyTorch's pipeline runtime labels each action (``torch.distributed.pipelining.schedules``):
``PP:2F0`` is the forward of microbatch 0 through stage 2, ``B`` a whole backward, ``I`` and ``W``
its halves. A hand-written loop labels its own: ``paceline:fwd:mb=3:mc=0``, with ``fwd``, ``bwd``,
``wgrad`` or the name of an operation type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    BETWEEN_STEPS,
    DATA_LOADING,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    GRADS_REDUCE_SCATTER,
    PARAMS_ALL_GATHER,
    REPLAYED_OP_TYPES,
    WGRAD_COMPUTE,
)


class LabelKind(Enum):
    """What happens in a labelled range."""

    COMPUTE = auto()
    TRANSFER = auto()
    COLLECTIVE = auto()


@dataclass(frozen=True, slots=True)
class Label:
    """What a range's name says."""

    op: str  # our operation type
    kind: LabelKind
    stage: int = ABSENT  # of the whole pipeline, `ABSENT` where the label has a chunk instead
    # mb, mc: microbatch; model chunk, `ABSENT` where it follows from the stage
    mb: int = ABSENT
    mc: int = ABSENT
    # One of the job's own: several may be parts of one computation.
    own: bool = False


_ACTIONS: Final[Mapping[str, tuple[str, LabelKind]]] = {
    "F": (FORWARD_COMPUTE, LabelKind.COMPUTE),
    "B": (BACKWARD_COMPUTE, LabelKind.COMPUTE),
    "I": (BACKWARD_COMPUTE, LabelKind.COMPUTE),
    "W": (WGRAD_COMPUTE, LabelKind.COMPUTE),
    "SEND_F": (FORWARD_SEND, LabelKind.TRANSFER),
    "RECV_F": (FORWARD_RECV, LabelKind.TRANSFER),
    "SEND_B": (BACKWARD_SEND, LabelKind.TRANSFER),
    "RECV_B": (BACKWARD_RECV, LabelKind.TRANSFER),
    "UNSHARD": (PARAMS_ALL_GATHER, LabelKind.COLLECTIVE),
    "REDUCE_GRAD": (GRADS_REDUCE_SCATTER, LabelKind.COLLECTIVE),
}
SHORT_NAMES: Final = {"fwd": FORWARD_COMPUTE, "bwd": BACKWARD_COMPUTE, "wgrad": WGRAD_COMPUTE}
_TRANSFERS: Final = (FORWARD_SEND, FORWARD_RECV, BACKWARD_SEND, BACKWARD_RECV)
_COLLECTIVES: Final = ("gather", "scatter", "reduce", "all-to-all", "send-recv")

TORCH_PREFIX: Final = "PP:"
# What PyTorch calls the ranges in which a loader gives a batch.
LOADER_PREFIX: Final = "enumerate(DataLoader)#"
OWN_PREFIX: Final = "paceline:"
_ACTION: Final = re.compile(
    r"PP:([0-9]{1,7})(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|REDUCE_GRAD|F|B|I|W)([0-9]{1,7})?"
)
# A forward and a backward that run in one action, as `ScheduleDualPipeV` has them.
_OVERLAPPED: Final = re.compile(r"PP:\(([^();]{1,32});([^();]{1,32})\)OVERLAP_F_B")
# The runtime labels it, and nothing is computed or sent; and names that communications have next to
# the labels of actions.
NO_OPERATION: Final = re.compile(r"PP:[0-9]+RESHARD|PP::.*")
_OWN: Final = re.compile(r"paceline:([a-z-]{1,64})((?::(?:mb|mc)=[0-9]{1,7})*)")
_STEP: Final = re.compile(r"(?:ProfilerStep#|paceline:step[=:])([0-9]{1,16})")


def parse_label(text: str) -> Label | None:
    """Return what a range's name says, None where it is no label of an operation.

    Examples
    --------
    >>> parse_label("PP:2SEND_F3").op
    'forward-send'
    >>> parse_label("paceline:fwd:mb=3:mc=0").mb
    3
    >>> parse_label("aten::mm") is None
    True
    """
    action = _ACTION.fullmatch(text)
    if action is not None:
        op, kind = _ACTIONS[action[2]]
        mb = ABSENT if action[3] is None else int(action[3])
        return Label(op, kind, stage=int(action[1]), mb=mb)
    own = _OWN.fullmatch(text)
    if own is None:
        return None
    op = SHORT_NAMES.get(own[1], own[1])
    if op not in REPLAYED_OP_TYPES:
        return None
    said = dict(part.split("=") for part in own[2].split(":") if part)
    return Label(
        op,
        kind_of(op),
        mb=int(said.get("mb", ABSENT)),
        mc=int(said.get("mc", ABSENT)),
    )


def parse_overlapped(text: str) -> tuple[Label, Label] | None:
    """Return the forward and the backward of an action that runs both, None for other names.

    Examples
    --------
    >>> [half.op for half in parse_overlapped("PP:(0F1;3B0)OVERLAP_F_B")]
    ['forward-compute', 'backward-compute']
    """
    both = _OVERLAPPED.fullmatch(text)
    if both is None:
        return None
    forward, backward = (parse_label(f"{TORCH_PREFIX}{half}") for half in both.groups())
    if forward is None or backward is None:
        return None
    fits = forward.op == FORWARD_COMPUTE and backward.op == BACKWARD_COMPUTE
    return (forward, backward) if fits else None


def parse_between(text: str) -> str | None:
    """Return what ranks do between steps in a range, None where its name does not say that.

    Examples
    --------
    >>> parse_between("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
    'data-loading'
    >>> parse_between("paceline:data-loading")
    'data-loading'
    """
    if text.startswith(LOADER_PREFIX):
        return DATA_LOADING
    name = text.removeprefix(OWN_PREFIX)
    return name if name != text and name in BETWEEN_STEPS else None


def parse_step(text: str) -> int | None:
    """Return the step that a range's name says (``ProfilerStep#12``), None where it says none."""
    step = _STEP.fullmatch(text)
    return None if step is None else int(step[1])


def kind_of(op: str) -> LabelKind:
    """Return what happens in a range of an operation type."""
    if op in _TRANSFERS:
        return LabelKind.TRANSFER
    computes = op.endswith("compute") or not op.endswith(_COLLECTIVES)
    return LabelKind.COMPUTE if computes else LabelKind.COLLECTIVE
