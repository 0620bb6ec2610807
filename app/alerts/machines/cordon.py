"""Commands that take a machine out of a cluster, for people to copy."""

from __future__ import annotations

import re
import shlex
from typing import Final

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
