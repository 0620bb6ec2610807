"""One machine, one incident: what several jobs blame on a host is told once, by one of them.

The first incident that fires with a host at fault leads; those of other jobs that blame the same
host stand inside of it and send no messages of their own. The lead lasts until every job inside is
well, also when its own is. Jobs that went silent at the same time are one incident in the same way:
the network or the collector is more likely than that many ends.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from app.analysis.diagnosis.causes.registry import blames_machine
from app.analysis.trace.rank_metadata import called
from app.incidents.lifecycle import Incident
from app.incidents.models.facts import NO_DATA_CAUSE, Facts
from app.incidents.models.rules import highest
from app.incidents.models.tables import IncidentState

# Last data this close to each other may have ended for one reason.
TOGETHER: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Inside:
    """An incident inside of another one, with its job as rules and channels see it."""

    incident: Incident
    job: str
    labels: Mapping[str, str]


def host_of(where: str) -> str:
    """Return the host that an incident's place names; empty where it is none.

    Where no host is recorded a worker stands in its place, which is another machine in each job.
    """
    return "" if where.startswith(("worker (", "stage ", "rank ", "ranks ")) else where


def machine_of(incident: Incident) -> str:
    """Return the host that is at fault; empty where none is named or the cause is the job's own."""
    return host_of(incident.where) if blames_machine(incident.diagnosed_cause) else ""


def place_of(where: str, facts: Facts | None) -> str:
    """Return an incident's place as people read it: a host's name that is a guess says so."""
    return called(where, guessed=facts is not None and facts.guesses(where))


def node_of(incident: Incident) -> str:
    """Return the node at fault that schedulers know; empty also where its name is a guess."""
    host = machine_of(incident)
    return "" if incident.facts is not None and incident.facts.guesses(host) else host


def joins_others(incident: Incident) -> bool:
    """Return whether incidents of other jobs that blame the same host are the same thing.

    What is the job's own is no other job's. Pods of two jobs may have one name: only a GPU tells
    that they are on one machine.
    """
    if incident.cause == NO_DATA_CAUSE:
        return True
    host = machine_of(incident)
    return bool(host) and (incident.facts is None or incident.facts.tells(host))


def silent_since(incident: Incident) -> datetime:
    """Return when the last data came, of an incident about a job that sends nothing."""
    return incident.opened_at - timedelta(minutes=incident.value or 0.0)


def shared_by(incident: Incident) -> tuple[str, ...]:
    """Return the names under which incidents of other jobs may be the same thing, its own first.

    Of a cause that blames a machine that is its host. Of silence it is the time of the last data,
    and the times next to it, in which others may have begun.
    """
    if incident.cause == NO_DATA_CAUSE:
        at = int(silent_since(incident).timestamp() // TOGETHER.total_seconds())
        return tuple(f"silent since {n}" for n in (at, at - 1, at + 1))
    host = host_of(incident.where)
    return (host,) if host else ()


def speaking_for(lead: Incident, inside: Sequence[Inside]) -> Incident:
    """Return an incident as channels are notified of it, for all that are inside it.

    It is as severe as the worst of them. That one of them got worse makes it news, as it would be
    alone; ones that are over count for that too, so that the number only rises.
    """
    present = [one.incident for one in inside if one.incident.state is not IncidentState.RESOLVED]
    worse = sum(one.incident.escalated_at is not None for one in inside)
    return replace(
        lead,
        severity=highest([lead.severity, *(incident.severity for incident in present)]),
        epoch=lead.epoch + worse,
    )


# ---- Commands that take a machine out of a cluster, for people to copy -------------------------


# Schedulers read more than a name in others: Slurm expands brackets and commas into several nodes,
# and what begins with a hyphen is an option. Quotes keep neither from it.
_ONE_NODE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
# Slurm takes it for every node that there is.
_EVERY_NODE: Final = "all"


def is_one_node(name: str) -> bool:
    """Return whether schedulers read a name as that of one node.

    Examples
    --------
    >>> is_one_node("node-7"), is_one_node("node-[1-99]"), is_one_node("ALL")
    (True, False, False)
    """
    return _ONE_NODE.fullmatch(name) is not None and name.lower() != _EVERY_NODE


def cordon_commands(host: str, why: str) -> list[tuple[str, str]]:
    """Return pairs of a scheduler and its command; none for a name that is no single node's.

    Examples
    --------
    >>> cordon_commands("node-7", "slow")[1]
    ('Slurm', 'scontrol update nodename=node-7 state=drain reason=slow')
    >>> cordon_commands("node-[1-99]", "slow")
    []
    """
    if not is_one_node(host):
        return []
    name, reason = shlex.quote(host), shlex.quote(" ".join(why.split()))
    return [
        ("Kubernetes", f"kubectl cordon {name}"),
        ("Slurm", f"scontrol update nodename={name} state=drain reason={reason}"),
    ]
