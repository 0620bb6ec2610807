"""A session's steps on their way to a replay, and what an adaptation would make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.analysis.replay.adaptations.evidence import Sign
from app.analysis.replay.clocks.alignment import RankClocks, align
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.graph import Graph
from app.analysis.replay.repair import RecreatedOperations, recreate


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Steps of each shape and their dependencies.

    Parameters
    ----------
    arranged : tuple of Layout
        As recorded.
    layouts : tuple of Layout
        By one clock, and with what the recorder lost.
    graphs : tuple of Graph
    clocks : RankClocks
    recreated : RecreatedOperations
    absolute : bool
        Whether starts are readings of clocks, so that steps can be compared with one another.
    """

    arranged: tuple[Layout, ...]
    layouts: tuple[Layout, ...]
    graphs: tuple[Graph, ...]
    clocks: RankClocks
    recreated: RecreatedOperations
    absolute: bool

    @classmethod
    def of(cls, arranged: Sequence[Layout], graphs: Sequence[Graph], *, absolute: bool) -> Draft:
        """Align the clocks of recorded steps and make anew what the recorder lost."""
        aligned, clocks = align(arranged, graphs, absolute=absolute)
        layouts, recreated = recreate(aligned, graphs)
        return cls(tuple(arranged), tuple(layouts), tuple(graphs), clocks, recreated, absolute)

    def with_graphs(self, graphs: Sequence[Graph]) -> Draft:
        """Return the draft with other dependencies."""
        return replace(self, graphs=tuple(graphs))

    def recorded_otherwise(self, arranged: Sequence[Layout]) -> Draft:
        """Return the draft as it is with other recorded times."""
        return Draft.of(arranged, self.graphs, absolute=self.absolute)


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What calls for an adaptation, and the steps with it."""

    sign: Sign
    draft: Draft
