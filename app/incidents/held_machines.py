"""Incidents of several jobs on one machine: the first is the lead, the others are its members.

The first incident that fires with a host at fault is the lead; those of other jobs that blame the
same host are its members ("inside" of it) and send no messages of their own. The lead lasts until
all its members are resolved, even after its own job recovered. Jobs that went silent at the same
time are grouped in the same way: a failure of the network or the collector is more likely than as
many ends.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from app.analysis.diagnosis.causes.registry import blames_machine
from app.analysis.trace.rank_metadata import node_label
from app.incidents.lifecycle import Incident
from app.incidents.models.facts import NO_DATA_CAUSE, Facts
from app.incidents.models.rules import highest
from app.incidents.models.tables import IncidentState

# Jobs whose last data are less than this time apart may be silent for the same reason.
SILENT_TOGETHER_WITHIN: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class MemberIncident:
    """A member of a lead, with the name and labels of its job."""

    incident: Incident
    job: str
    labels: Mapping[str, str]


def host_of(where: str) -> str:
    """Return the host in an incident's place; empty if the place is a worker, stage or rank.

    If no host is recorded the place is a worker, which runs on another machine in each job.
    """
    return "" if where.startswith(("worker (", "stage ", "rank ", "ranks ")) else where


def machine_of(incident: Incident) -> str:
    """Return the host at fault; empty if it has no name, or if the cause lies in the job."""
    return host_of(incident.where) if blames_machine(incident.diagnosed_cause) else ""


def place_of(where: str, facts: Facts | None) -> str:
    """Return an incident's place as text; a guessed host name is marked as a guess."""
    return node_label(where, guessed=facts is not None and facts.has_guessed_name(where))


def node_of(incident: Incident) -> str:
    """Return the node at fault by its name in schedulers; empty if the name is a guess."""
    host = machine_of(incident)
    return "" if incident.facts is not None and incident.facts.has_guessed_name(host) else host


def is_shared(incident: Incident) -> bool:
    """Return whether incidents of other jobs on the same host have the same reason.

    Pods of two jobs may have the same name: only the UUID of a GPU proves that they are on one
    machine.
    """
    if incident.cause == NO_DATA_CAUSE:
        return True
    host = machine_of(incident)
    return bool(host) and (incident.facts is None or incident.facts.identifies(host))


def silent_since(incident: Incident) -> datetime:
    """Return the time of the last data before an incident about a job without sessions."""
    return incident.opened_at - timedelta(minutes=incident.value or 0.0)


def shared_names(incident: Incident) -> tuple[str, ...]:
    """Return the names to find incidents of other jobs on the same machine, its own name first.

    For a machine at fault the name is the host. For silence the names are the time window of the
    last data and its two neighbors, in which the silence of other jobs may have begun.
    """
    if incident.cause == NO_DATA_CAUSE:
        at = int(silent_since(incident).timestamp() // SILENT_TOGETHER_WITHIN.total_seconds())
        return tuple(f"silent since {n}" for n in (at, at - 1, at + 1))
    host = host_of(incident.where)
    return (host,) if host else ()


def as_lead(lead: Incident, inside: Sequence[MemberIncident]) -> Incident:
    """Return a lead as it is sent to channels, on behalf of itself and all its members.

    Its severity is the highest of lead and members. Each escalated member raises the lead's epoch,
    which makes the lead news; resolved members count too, so that the epoch never decreases.
    """
    incidents = [member.incident for member in inside]
    present = [each for each in incidents if each.state is not IncidentState.RESOLVED]
    escalated = sum(each.escalated_at is not None for each in incidents)
    return replace(
        lead,
        severity=highest([lead.severity, *(incident.severity for incident in present)]),
        epoch=lead.epoch + escalated,
    )


# Slurm expands brackets and commas into several nodes and reads a leading hyphen as an option;
# quotes prevent neither.
_ONE_NODE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
# Slurm reads this name as all nodes of the cluster.
_EVERY_NODE: Final = "all"


def is_one_node(name: str) -> bool:
    """Return whether schedulers read a name as the name of a single node.

    Examples
    --------
    >>> is_one_node("node-7"), is_one_node("node-[1-99]"), is_one_node("ALL")
    (True, False, False)
    """
    return _ONE_NODE.fullmatch(name) is not None and name.lower() != _EVERY_NODE


def cordon_commands(host: str, why: str) -> list[tuple[str, str]]:
    """Return pairs of a scheduler and its command to cordon a node; empty if the name is unsafe.

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


def cordon_commands_of(incident: Incident) -> list[tuple[str, str]]:
    """Return `cordon_commands` for the node that an incident blames; empty without one."""
    return cordon_commands(node_of(incident), f"Paceline incident {incident.id}")
