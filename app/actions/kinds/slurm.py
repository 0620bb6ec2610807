"""Slurm: drain and resume a node with ``scontrol``, without a shell.

``scontrol`` accepts names of several nodes (brackets, commas, ``ALL``), so a name is checked
before, and Slurm has to know exactly this node. A node that others drained is not changed, and a
node that others resumed or drained again is not resumed: the drain reason identifies the order.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter

from app.actions.kinds.kind import ActionKind, AttemptTools, Order, require_one_node
from app.platform.outbound import DeliveryError, ReceiverAnswer, excerpt

REASON_CHARACTERS: Final = 400
# scontrol gets only these variables of the server's environment, which holds secrets.
ENVIRONMENT: Final = ("PATH", "SLURM_CONF", "SLURM_CONF_SERVER", "LD_LIBRARY_PATH")
# Parts of scontrol's messages, in lower case, for an unknown node and for a user without
# permission.
UNKNOWN: Final = ("not found", "invalid node name")
DENIED: Final = "access/permission denied"

_STATE: Final = re.compile(r"\bState=(\S+)")
_REASON: Final = re.compile(r"\bReason=(.*)$")


@dataclass(frozen=True, slots=True)
class SlurmConfig:
    """No configuration: the operator's slurm.conf determines the cluster."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of a node in Slurm."""

    flags: frozenset[str]  # flags of the node's state, such as IDLE and DRAIN
    reason: str

    @property
    def is_drained(self) -> bool:
        """Return whether no new job starts on the node."""
        return "DRAIN" in self.flags


def node_state(name: str, shown: str) -> NodeState:
    """Return the state in the output of ``scontrol show node --oneliner``.

    Raises
    ------
    DeliveryError
        ``slurm.unknown_node`` if the output does not describe exactly this node.

    Examples
    --------
    >>> node_state("node-1", "NodeName=node-1 State=IDLE+DRAIN CPUs=1 Reason=disk [root@now]")
    NodeState(flags=frozenset({'IDLE', 'DRAIN'}), reason='disk [root@now]')
    """
    lines = [line for line in shown.splitlines() if line.strip()]
    state = _STATE.search(lines[0]) if lines else None
    if len(lines) != 1 or lines[0].split()[0] != f"NodeName={name}" or state is None:
        raise DeliveryError("slurm.unknown_node", f"Slurm knows no node {name}.", permanent=True)
    reason = _REASON.search(lines[0])
    flags = frozenset(state[1].rstrip("*~#!%$@^-").split("+"))
    return NodeState(flags, reason[1].strip() if reason else "")


def reason_of(order: Order) -> str:
    """Return the drain reason that Slurm shows: one line that begins with Paceline's prefix."""
    said = f"{_mark(order)}: {order.cause_title}, {order.evidence_url}"
    line = "".join(sign if sign.isprintable() else " " for sign in said)
    return line[:REASON_CHARACTERS]


def describe(config: SlurmConfig, order: Order) -> str:
    """Return the command that drains the node."""
    del config
    return shlex.join(["scontrol", *_drain(order)])


def act(config: SlurmConfig, order: Order, means: AttemptTools) -> ReceiverAnswer:
    """Drain the node; its running jobs continue."""
    del config
    before = _look(order, means)
    if before.is_drained:
        return ReceiverAnswer(None, excerpt(f"drained already: {before.reason}"))
    _scontrol(means, *_drain(order))
    after = _look(order, means)
    if not after.is_drained:
        raise DeliveryError("slurm.not_done", f"{order.node} is not drained after the command.")
    return ReceiverAnswer(None, excerpt("+".join(sorted(after.flags))))


def release(config: SlurmConfig, order: Order, means: AttemptTools) -> ReceiverAnswer:
    """Resume the node if this order drained it."""
    del config
    before = _look(order, means)
    if not before.is_drained:
        return ReceiverAnswer(None, "resumed already")
    if not before.reason.startswith(_mark(order)):
        return ReceiverAnswer(None, excerpt(f"left drained, for another reason: {before.reason}"))
    _scontrol(means, "update", f"nodename={order.node}", "state=resume")
    after = _look(order, means)
    if after.is_drained:
        raise DeliveryError("slurm.not_done", f"{order.node} is drained after the command.")
    return ReceiverAnswer(None, excerpt("+".join(sorted(after.flags))))


def _mark(order: Order) -> str:
    return f"Paceline {order.id}"


def _drain(order: Order) -> list[str]:
    return ["update", f"nodename={order.node}", "state=drain", f"reason={reason_of(order)}"]


def _look(order: Order, means: AttemptTools) -> NodeState:
    require_one_node(order.node)
    return node_state(order.node, _scontrol(means, "show", "node", order.node, "--oneliner"))


def _scontrol(means: AttemptTools, *arguments: str) -> str:
    """Return the output of scontrol.

    Raises
    ------
    DeliveryError
    """
    if means.scontrol is None:
        raise DeliveryError("slurm.off", "PACELINE_SLURM_SCONTROL is not set.")
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    try:
        done = subprocess.run(  # noqa: S603 - the operator's program, and a list of arguments
            [means.scontrol, *arguments],
            env={**environment, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=means.outbound.left_s(),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DeliveryError("timeout", "scontrol did not answer in time.") from error
    except OSError as error:
        raise DeliveryError("slurm.no_scontrol", f"scontrol cannot be run: {error}") from error
    said = excerpt(done.stdout + done.stderr)
    if done.returncode and any(words in said.lower() for words in UNKNOWN):
        raise DeliveryError(
            "slurm.unknown_node",
            "Slurm knows no node of this name.",
            permanent=True,
            answer=ReceiverAnswer(None, said),
        )
    if done.returncode:
        raise DeliveryError(
            "slurm.failed",
            f"scontrol ended with {done.returncode}.",
            permanent=DENIED in said.lower(),
            answer=ReceiverAnswer(None, said),
        )
    return done.stdout.decode("utf-8", "replace")


SLURM: Final = ActionKind(
    name="slurm",
    title="Slurm",
    config=TypeAdapter(SlurmConfig),
    secrets=frozenset(),
    describe=describe,
    act=act,
    release=release,
    needs_scontrol=True,
)
