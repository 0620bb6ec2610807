"""Slurm: drain and resume a node with ``scontrol``, and list jobs with ``squeue``, without a shell.

Jobs are listed with ``squeue`` and only in fields that the owner of a job cannot write: the output
of ``scontrol show jobs`` contains the job's name, which may hold line breaks and other fields.

``scontrol`` accepts names of several nodes (brackets, commas, ``ALL``), so a name is checked
before, and Slurm has to know exactly this node. A node that others drained is not changed, and a
node that others resumed or drained again is not resumed: the drain reason identifies the order.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Final, cast

from pydantic import Field, TypeAdapter

from app.actions.kinds.kind import (
    MAX_PLACEMENTS,
    ActionKind,
    AttemptTools,
    Order,
    Placement,
    Scheduler,
    require_one_node,
    too_many_placements,
)
from app.incidents.held_machines import is_one_node
from app.platform.outbound import DeliveryError, ReceiverAnswer, excerpt

REASON_CHARACTERS: Final = 400
# scontrol gets only these variables of the server's environment, which holds secrets.
ENVIRONMENT: Final = ("PATH", "SLURM_CONF", "SLURM_CONF_SERVER", "LD_LIBRARY_PATH")
# Parts of scontrol's messages, in lower case, for an unknown node and for a user without
# permission.
UNKNOWN: Final = ("not found", "invalid node name")
DENIED: Final = "access/permission denied"

# Limits in bytes of the output of scontrol about one node, and of squeue about all jobs.
NODE_BYTES: Final = 64 * 1024
JOBS_BYTES: Final = 16 * 1024 * 1024
# Fields of a job that squeue prints: its id; its id with that of its array or heterogeneous job;
# account; user; nodes.
FIELDS: Final = "%A|%i|%a|%u|%N"
# Running jobs, and jobs whose processes are ending.
STATES: Final = "RUNNING,COMPLETING"

_STATE: Final = re.compile(r"\bState=(\S+)")
_REASON: Final = re.compile(r"\bReason=(.*)$")


Name = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]*$")]


@dataclass(frozen=True, slots=True)
class SlurmConfig:
    """The Slurm jobs that are the project's; the operator's slurm.conf determines the cluster."""

    accounts: Annotated[
        tuple[Name, ...],
        Field(
            max_length=100,
            description=(
                "Slurm accounts whose jobs are this project's: only nodes of such jobs are drained."
            ),
            examples=["research"],
        ),
    ] = ()
    users: Annotated[
        tuple[Name, ...],
        Field(
            max_length=100,
            description=(
                "Users whose jobs are this project's; with accounts, a job has to match both."
            ),
        ),
    ] = ()


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


def placements(config: SlurmConfig, means: AttemptTools) -> Sequence[Placement]:
    """Return the nodes of the running jobs of the accounts and users.

    Raises
    ------
    DeliveryError
        ``slurm.no_accounts`` if the configuration names neither accounts nor users.
    """
    if not (config.accounts or config.users):
        raise DeliveryError(
            "slurm.no_accounts",
            "Name the Slurm accounts or users of this project in the policy: without them no node "
            "is known to be the project's.",
        )
    if means.scontrol is None:
        raise _is_off()
    wanted = {account.lower() for account in config.accounts}
    accounts = [f"--account={','.join(config.accounts)}"] if config.accounts else []
    said = _run(
        means,
        str(Path(means.scontrol).with_name("squeue")),
        *("--noheader", "--all", "--local", f"--states={STATES}", f"--format={FIELDS}", *accounts),
        most_bytes=JOBS_BYTES,
    )
    found: set[Placement] = set()
    for line in said.splitlines():
        job, whole, account, user, nodes = _fields(line)
        # Slurm's accounts have no upper case.
        if accounts and account.lower() not in wanted:
            continue
        if config.users and user not in config.users:
            continue
        # SLURM_JOB_ID is the first component's id in all components of a heterogeneous job, whose
        # ids are printed as 81+0, 81+1, …
        leader, is_component, _ = whole.partition("+")
        ids = {job, leader} if is_component else {job}
        for node in filter(is_one_node, node_names(nodes)):
            found |= {Placement(node, node, f"slurm/{each}") for each in ids}
            if len(found) > MAX_PLACEMENTS:
                raise too_many_placements()
    return sorted(found, key=lambda each: (each.node, each.job))


def _fields(line: str) -> list[str]:
    fields = line.split("|")
    if len(fields) != FIELDS.count("|") + 1 or not fields[0].isdecimal():
        raise _unexpected(line)
    return fields


_PART: Final = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def node_names(listed: str) -> Iterator[str]:
    """Yield the names in a list of nodes as Slurm writes it.

    Raises
    ------
    DeliveryError
        ``slurm.answer`` if it is no list of nodes.

    Examples
    --------
    >>> list(node_names("node-[08-10],rack[0-1]n[1,3]"))
    ['node-08', 'node-09', 'node-10', 'rack0n1', 'rack0n3', 'rack1n1', 'rack1n3']
    """
    for part in _PART.findall(listed):
        pieces = re.split(r"\[([^\[\]]*)\]", part)
        # Odd pieces were in brackets.
        choices = [
            _numbers(piece) if index % 2 else iter([piece]) for index, piece in enumerate(pieces)
        ]
        yield from map("".join, itertools.product(*choices))


def _numbers(ranges: str) -> Iterator[str]:
    """Yield the numbers in brackets, with the leading zeros of the first one of each range."""
    count = 0
    for each in ranges.split(","):
        match = _RANGE.fullmatch(each)
        if match is None:
            raise _unexpected(ranges)
        first, last = match[1], match[2] or match[1]
        for number in range(int(first), int(last) + 1):
            count += 1
            if count > MAX_PLACEMENTS:
                raise too_many_placements()
            yield str(number).zfill(len(first))


def _unexpected(text: str) -> DeliveryError:
    answer = ReceiverAnswer(None, excerpt(text))
    return DeliveryError("slurm.answer", "squeue printed an unexpected line.", answer=answer)


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
        raise _is_off()
    return _run(means, means.scontrol, *arguments, most_bytes=NODE_BYTES)


def _is_off() -> DeliveryError:
    return DeliveryError("slurm.off", "PACELINE_SLURM_SCONTROL is not set.")


def _run(means: AttemptTools, program: str, *arguments: str, most_bytes: int) -> str:
    """Return the output of a program of Slurm, which ends before the deadline of the attempt.

    Raises
    ------
    DeliveryError
    """
    name, left_s = Path(program).name, means.outbound.left_s()
    environment = {each: os.environ[each] for each in ENVIRONMENT if each in os.environ}
    with tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(  # noqa: S603 - in the folder of the operator's scontrol, no shell
                [program, *arguments],
                env={**environment, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                # A wrapper of the operator may have children, which are ended with it.
                start_new_session=True,
            )
        except OSError as error:
            raise DeliveryError(f"slurm.no_{name}", f"{name} cannot be run: {error}") from error
        late = threading.Event()

        def stop() -> None:
            late.set()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

        timer = threading.Timer(left_s, stop)
        timer.start()
        with child:
            # A further byte shows that the limit is exceeded.
            output = cast("IO[bytes]", child.stdout).read(most_bytes + 1)
            if len(output) > most_bytes:
                stop()
        timer.cancel()
        errors.seek(0)
        said = excerpt(output[:most_bytes] + errors.read(NODE_BYTES))
    if len(output) > most_bytes:
        raise DeliveryError("slurm.answer", f"{name} printed more than {most_bytes} bytes.")
    if late.is_set():
        raise DeliveryError("timeout", f"{name} did not answer in time.")
    if child.returncode and any(words in said.lower() for words in UNKNOWN):
        raise DeliveryError(
            "slurm.unknown_node",
            "Slurm knows no node of this name.",
            permanent=True,
            answer=ReceiverAnswer(None, said),
        )
    if child.returncode:
        raise DeliveryError(
            "slurm.failed",
            f"{name} ended with {child.returncode}.",
            permanent=DENIED in said.lower(),
            answer=ReceiverAnswer(None, said),
        )
    return output.decode("utf-8", "replace")


SLURM: Final = ActionKind(
    name="slurm",
    title="Slurm",
    config=TypeAdapter(SlurmConfig),
    secrets=frozenset(),
    describe=describe,
    act=act,
    release=release,
    needs_scontrol=True,
    scheduler=Scheduler(
        scope=lambda config: (*config.accounts, "", *config.users), placements=placements
    ),
)
