"""A session's steps on their way to a replay, and what an adaptation would make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from app.analysis.replay.adaptations.evidence import Sign
from app.analysis.replay.adaptations.trial import OffRecording, off_recording
from app.analysis.replay.clocks.alignment import RankClocks, align, one_clock
from app.analysis.replay.engine.durations import OwnDurations, own_durations
from app.analysis.replay.engine.pieces import executor_of
from app.analysis.replay.engine.replay import Executor
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.graph import Graph
from app.analysis.replay.repair import RecreatedOperations, recreate
from app.analysis.replay.repairs.absent import arriving_last, with_typical_transfers


@dataclass(frozen=True, slots=True)
class Recording:
    """How steps were recorded."""

    # Whether starts are readings of clocks, so that steps can be compared with one another.
    absolute: bool
    # Whether all of them are readings of the clock of one host.
    one_clock: bool = False
    # Whether collectives within computations are recorded only while these wait for them.
    only_waits: bool = False


@dataclass(frozen=True, eq=False)
class Draft:
    """Steps of each shape and their dependencies."""

    arranged: tuple[Layout, ...]  # as recorded
    layouts: tuple[Layout, ...]  # by one clock, and with what the recorder lost
    graphs: tuple[Graph, ...]
    own: tuple[OwnDurations, ...]  # without waiting
    clocks: RankClocks
    recreated: RecreatedOperations
    recording: Recording

    @property
    def absolute(self) -> bool:
        """Return whether steps can be compared with one another."""
        return self.recording.absolute

    @cached_property
    def executors(self) -> tuple[Executor, ...]:
        """Return what replays each shape, as long as no ideal duration is negative."""
        return tuple(
            executor_of(layout, graph, own.min(axis=(1, 2)), own.size)
            for layout, graph, (own, _) in zip(self.layouts, self.graphs, self.own, strict=True)
        )

    @property
    def discrepancy(self) -> float:
        """Return how far the replay of recorded durations is from the recording, relative to it."""
        return self.off_recording.mean

    @cached_property
    def off_recording(self) -> OffRecording:
        """Return the same of all steps together and of the typical one."""
        own = (own for own, _ in self.own)
        return off_recording(zip(self.layouts, self.graphs, own, self.executors, strict=True))

    @classmethod
    def of(cls, arranged: Sequence[Layout], graphs: Sequence[Graph], recording: Recording) -> Draft:
        """Align the clocks of recorded steps and make anew what the recorder lost."""
        aligned, clocks = (
            one_clock(arranged, absolute=recording.absolute)
            if recording.one_clock
            else align(arranged, graphs, absolute=recording.absolute)
        )
        layouts, recreated = recreate(aligned, graphs)
        layouts = [arriving_last(layout) for layout in layouts]
        own = tuple(
            (with_typical_transfers(layout, graph, own_ns), clamped)
            for layout, graph in zip(layouts, graphs, strict=True)
            for own_ns, clamped in [own_durations(layout, graph)]
        )
        parts = tuple(arranged), tuple(layouts), tuple(graphs), own
        return cls(*parts, clocks, recreated, recording)

    def with_graphs(self, graphs: Sequence[Graph]) -> Draft:
        """Return the draft with other dependencies; what moves data together stays the same."""
        return replace(self, graphs=tuple(graphs))

    def recorded_otherwise(
        self, arranged: Sequence[Layout], graphs: Sequence[Graph] | None = None
    ) -> Draft:
        """Return the draft as it is with other recorded times, and maybe other dependencies."""
        return Draft.of(arranged, self.graphs if graphs is None else graphs, self.recording)

    def proposal(self, found: Sequence[tuple[Layout, Sign] | None]) -> Proposal | None:
        """Return the draft with some layouts as they were found to be; None with none of them.

        Parameters
        ----------
        found : sequence of (Layout, Sign) or None
            For each arranged layout the one that takes its place, and its sign; None where it
            stays.
        """
        signs = [item[1] for item in found if item is not None]
        if not signs:
            return None
        arranged = [
            layout if item is None else item[0]
            for layout, item in zip(self.arranged, found, strict=True)
        ]
        return Proposal(signs[0], self.recorded_otherwise(arranged))


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What calls for an adaptation, and the steps with it."""

    sign: Sign
    draft: Draft
