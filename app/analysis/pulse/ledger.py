"""Notices that are kept: which are open, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from app.analysis.pulse.notices import Notice

# Closed notices that are remembered, as a spell may come back.
_REMEMBERED: Final = 16


@dataclass(slots=True)
class Ledger:
    """All that was noticed and may still change, and what changed since it was last asked.

    Parameters
    ----------
    next_number : int
        Two ledgers of a job count in twos, one the even numbers and one the odd ones.
    open : dict of int to Notice
        By number: what goes on.
    closed : dict of int to Notice
        The last ones that are over.
    changed : dict of int to Notice or None
        New words since the last `take`; None of a notice that turned out to be part of another.
    """

    next_number: int = 0
    open: dict[int, Notice] = field(default_factory=dict)
    closed: dict[int, Notice] = field(default_factory=dict)
    changed: dict[int, Notice | None] = field(default_factory=dict)

    def add(self, notice: Notice) -> int:
        """Keep a new notice, and return its number."""
        number = self.next_number
        self.next_number += 2
        self.update(replace(notice, number=number))
        return number

    def update(self, notice: Notice) -> None:
        """Replace the words of a notice."""
        number = notice.number
        if notice.cleared_step is None:
            self.closed.pop(number, None)
            self.open[number] = notice
        else:
            self.open.pop(number, None)
            self.closed[number] = notice
            while len(self.closed) > _REMEMBERED:
                self.closed.pop(next(iter(self.closed)))
        self.changed[number] = notice

    def get(self, number: int) -> Notice | None:
        """Return a notice that may still change."""
        return self.open.get(number) or self.closed.get(number)

    def withdraw(self, number: int) -> None:
        """Drop a notice that is part of another one."""
        self.open.pop(number, None)
        self.closed.pop(number, None)
        self.changed[number] = None

    def take(self) -> dict[int, Notice | None]:
        """Return what changed since the last time."""
        changed, self.changed = self.changed, {}
        return changed


def hosts_of(ranks: Iterable[int], hosts: Mapping[int, str]) -> tuple[str, ...]:
    """Return the hosts of some ranks, as far as they are known, each once."""
    return tuple(dict.fromkeys(hosts[rank] for rank in ranks if rank in hosts))


def named(ranks: tuple[int, ...], hosts: tuple[str, ...]) -> str:
    """Return some ranks as people read them."""
    if not ranks:
        return "no rank"
    shown = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")  # noqa: PLR2004
    where = f" ({', '.join(hosts[:4])}{' …' if len(hosts) > 4 else ''})" if hosts else ""  # noqa: PLR2004
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{where}"


def over(notice: Notice, step: int, seconds: float | None = None) -> Notice:
    """Return a notice that is over, with the first step that is as before."""
    evidence = notice.evidence
    if seconds is not None:
        evidence = replace(evidence, seconds=seconds)
    return replace(notice, cleared_step=max(step, notice.from_step), evidence=evidence)
