"""Where the ranks of an attempt are, as its pulse tells it: stage and host of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from app.analysis.pulse.columns import Int64
from app.analysis.pulse.kept.packed import pack, unpack

UNKNOWN = -1


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The places of ranks.

    Parameters
    ----------
    ranks : int64[ranks]
        Global ranks, rising.
    stages : int64[ranks]
        Pipeline stage; `UNKNOWN` where that is not told.
    host_of : int64[ranks]
        Index into `hosts`; `UNKNOWN` likewise.
    hosts : tuple of str
        Names, in order.
    """

    ranks: Int64
    stages: Int64
    host_of: Int64
    hosts: tuple[str, ...]

    @classmethod
    def of(cls, ranks: Int64, stages: Int64, hosts: Mapping[int, str]) -> Self:
        """Return the places of some ranks, in any order."""
        order = np.argsort(ranks, kind="stable")
        names = tuple(sorted({hosts[rank] for rank in ranks.tolist() if rank in hosts}))
        number = {name: index for index, name in enumerate(names)}
        host_of = [number.get(hosts.get(rank, ""), UNKNOWN) for rank in ranks[order].tolist()]
        return cls(ranks[order], stages[order], np.array(host_of, np.int64), names)

    def of_ranks(self, ranks: Int64) -> Places:
        """Return the places of other ranks, unknown where they are not among these."""
        at = np.minimum(np.searchsorted(self.ranks, ranks), max(0, len(self.ranks) - 1))
        if not len(self.ranks):
            nowhere = np.full(len(ranks), UNKNOWN)
            return Places(ranks, nowhere, nowhere, ())
        known = self.ranks[at] == ranks
        return Places(
            ranks,
            np.where(known, self.stages[at], UNKNOWN),
            np.where(known, self.host_of[at], UNKNOWN),
            self.hosts,
        )

    def to_bytes(self) -> bytes:
        """Return them as few bytes; the same places are the same bytes."""
        columns = {"ranks": self.ranks, "stages": self.stages, "host_of": self.host_of}
        return pack(columns, steps=("ranks",), more={"hosts": list(self.hosts)})


def places_from(body: bytes | None) -> Places:
    """Return what was kept; no ranks where nothing was.

    Raises
    ------
    UnknownDocumentError
        They are of another version.
    """
    if body is None:
        none = np.empty(0, np.int64)
        return Places(none, none, none, ())
    columns, more = unpack(body)
    return Places(columns["ranks"], columns["stages"], columns["host_of"], tuple(more["hosts"]))
