"""Refusals, counted until they are written: what an unknown peer can add to the audit log."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Final

from app.access.principals import ActorKind

# Lines of one kind of actor that are kept apart until they are written; what is more is one.
LINES: Final = 16
OTHERS: Final = "several others"
ANYTHING: Final = "several requests"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An actor to whom a request was refused."""

    kind: ActorKind
    actor: str  # name of the person or token; address of a peer
    subject: str  # what was asked for: ``POST /api/v1/plans``
    reason: str  # the problem's code


class Refusals:
    """Counts refusals; for any thread. Whatever comes, it holds a few lines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[Refusal] = Counter()

    def note(self, refusal: Refusal, count: int = 1) -> None:
        """Count a refusal."""
        with self._lock:
            if refusal not in self._counts:
                alike = sum(known.kind is refusal.kind for known in self._counts)
                if alike >= LINES:
                    refusal = Refusal(refusal.kind, OTHERS, ANYTHING, "refused")
            self._counts[refusal] += count

    def take(self) -> Counter[Refusal]:
        """Return what was counted, and begin anew."""
        with self._lock:
            taken, self._counts = self._counts, Counter()
        return taken
