"""Registry of all kinds of actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.actions.kinds.event import EVENTS
from app.actions.kinds.kind import ActionKind
from app.actions.kinds.kubernetes import KUBERNETES
from app.actions.kinds.slurm import SLURM

KINDS: Final[Mapping[str, ActionKind]] = {kind.name: kind for kind in (EVENTS, KUBERNETES, SLURM)}


def title_of(kind: str) -> str:
    """Return the title of a kind of action; the name of an unknown kind."""
    return KINDS[kind].title if kind in KINDS else kind
