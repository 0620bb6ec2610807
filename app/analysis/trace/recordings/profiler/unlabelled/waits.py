"""What computations wait for their peers, told from the collectives that they issue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from app.analysis.trace.model import PARAMS_ALL_GATHER
from app.analysis.trace.recordings.profiler.groups import DATA_COLLECTIVES
from app.analysis.trace.recordings.profiler.unlabelled.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    REDUCE_SCATTER,
    Collective,
)
from app.analysis.trace.recordings.profiler.unlabelled.groups import Roles
from app.analysis.trace.recordings.profiler.unlabelled.program import IntArray, Part, Program
from app.analysis.trace.recordings.profiler.unlabelled.timeline import Timeline

# A broadcast of buffers, as a forward of DDP begins with, also gives parameters.
OF_DATA: Final = {**DATA_COLLECTIVES, BROADCAST: PARAMS_ALL_GATHER}


class Waits(NamedTuple):
    """What a computation waits for its peers, ns."""

    before: int = 0
    inside: int = 0
    after: int = 0
    end: int = 0  # when the last that it waits for afterwards is there


NO_WAITS: Final = Waits()


class Issued:
    """The collectives of a rank by the segments that issued them."""

    def __init__(
        self, program: Program, found: Sequence[Collective], time: Timeline, roles: Roles
    ) -> None:
        self._segments = program.segments
        self._found = found
        self._time = time
        self._roles = roles
        self._by_segment: dict[int, list[int]] = {}
        for number, segment in enumerate(time.segment.tolist()):
            if segment >= 0:
                self._by_segment.setdefault(segment, []).append(number)

    def of_data(self, number: int) -> list[int]:
        """Return the collectives of data-parallel ranks that a segment issued."""
        roles, found = self._roles, self._found
        return [
            one
            for one in self._by_segment.get(number, ())
            if roles.is_data(found[one]) and found[one].name in OF_DATA
        ]

    def _experts(self, number: int) -> list[int]:
        """Return the collectives by which ranks of experts exchange tokens within a segment."""
        roles, found = self._roles, self._found
        return [
            one
            for one in self._by_segment.get(number, ())
            if found[one].group in roles.experts and found[one].name == ALL_TO_ALL
        ]

    def waits(self) -> dict[int, Waits]:
        """Return what computations wait for their peers, by segment."""
        time, found = self._time, self._found
        waits: dict[int, Waits] = {}
        for number, segment in enumerate(self._segments):
            if segment.part not in {Part.FORWARD, Part.BACKWARD} or number not in time.computed:
                continue
            last = time.computed[number].last
            mine = self.of_data(number)
            experts = self._experts(number)
            if segment.part is Part.BACKWARD and not any(
                found[one].name in {REDUCE_SCATTER, ALL_GATHER} for one in mine
            ):
                # Buckets are reduced meanwhile; after its last kernel a backward waits for all.
                end = max((int(time.had[one]) for one in mine), default=last)
                # What a hook does with a bucket that is there waits for it within the backward.
                inside = sum(
                    int(time.had[one] - time.needed[one])
                    for one in mine
                    if time.held[one] and int(time.following[one]) == number
                ) + sum(
                    int(time.had[one] - time.needed[one])
                    for one in experts
                    if int(time.following[one]) == number and not time.opens[one]
                )
                # What tokens are waited for before it, those of the forward's last exchange, too.
                before = waits.get(number, NO_WAITS).before + sum(
                    int(time.had[one] - time.needed[one])
                    for one in experts
                    if int(time.following[one]) == number and time.opens[one]
                )
                waits[number] = Waits(before, inside, max(end - last, 0), end)
                continue
            for one in (*mine, *experts):
                takes = int(time.had[one] - time.needed[one])
                follows = int(time.following[one])
                reduces = found[one].name in {REDUCE_SCATTER, ALL_REDUCE}
                if follows != number and reduces and time.opens[one]:
                    known = waits.get(number, NO_WAITS)
                    end = max(known.end, int(time.had[one]))
                    waits[number] = known._replace(after=known.after + takes, end=end)
                elif time.opens[one]:
                    known = waits.get(follows, NO_WAITS)
                    waits[follows] = known._replace(before=known.before + takes)
                else:
                    known = waits.get(follows, NO_WAITS)
                    waits[follows] = known._replace(inside=known.inside + takes)
        return waits


def left_out_before(time: Timeline, found: Sequence[Collective], roles: Roles) -> IntArray:
    """Return what of the time before each kernel is no part of a computation, ns, summed up.

    Shape (kernels,): launch delays, and waits for data-parallel ranks.
    """
    each = time.late.copy()
    data = [n for n, one in enumerate(found) if roles.is_data(one) or one.group in roles.experts]
    places = np.searchsorted(time.starts, np.array([found[n].end for n in data], np.int64))
    there = places < len(each)
    takes = (time.had - time.needed)[data]
    np.add.at(each, places[there], takes[there])
    return np.asarray(np.cumsum(each))
