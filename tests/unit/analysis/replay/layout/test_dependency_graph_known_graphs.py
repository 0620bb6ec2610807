from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from app.analysis.replay.layout import dependency_graph as known_graphs
from app.analysis.replay.layout.arrange import lay_out
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.dependency_graph import MOST_GRAPHS, build_graph, graph_of
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE
from tests.factories import session


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    known_graphs._cached_graphs.clear()
    yield
    known_graphs._cached_graphs.clear()


def a_layout(*, dp: int = 2, pp: int = 3, microbatches: int = 4, seed: int = 1) -> Layout:
    trace = session(dp=dp, pp=pp, microbatches=microbatches, seed=seed).trace
    (layout,) = lay_out(trace).groups
    return layout


def test_sessions_of_a_job_have_one_graph() -> None:
    one, other = a_layout(seed=1), a_layout(seed=2)

    assert not np.array_equal(one.launch, other.launch)
    assert graph_of(one) is graph_of(other)
    assert graph_of(other) == build_graph(other)


def test_another_order_of_computations_has_another_graph() -> None:
    layout = a_layout()
    before = graph_of(layout)
    # On the last stage, a second forward pass may also precede the first backward pass.
    forward, backward = layout.of(FORWARD_COMPUTE, 2)[1], layout.of(BACKWARD_COMPUTE, 2)[0]
    launch = layout.launch.copy()
    launch[[forward, backward]] = launch[[backward, forward]]
    changed = replace(layout, launch=launch)

    assert graph_of(changed) != before
    assert graph_of(changed) == build_graph(changed)


@pytest.mark.parametrize("change", [{"dp": 3}, {"pp": 4}, {"microbatches": 5}])
def test_another_shape_has_another_graph(change: dict[str, int]) -> None:
    graph_of(a_layout())
    changed = a_layout(**change)

    assert graph_of(changed) == build_graph(changed)


def test_other_routes_have_another_graph() -> None:
    layout = a_layout()
    forward = ((0, 0), (1, 0), (2, 0))
    graph_of(layout)
    routed = replace(layout, routes=(forward,))
    other = replace(layout, routes=(forward[:2],))

    assert graph_of(routed) == build_graph(routed)
    assert graph_of(other) == build_graph(other)


def test_few_graphs_are_kept_and_no_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for microbatches in range(1, MOST_GRAPHS + 4):
        graph_of(a_layout(microbatches=microbatches))
    assert len(known_graphs._cached_graphs) == MOST_GRAPHS

    layout = a_layout(microbatches=2, pp=2)
    monkeypatch.setattr(known_graphs, "MOST_NODES", len(layout.nodes) - 1)
    assert graph_of(layout) is not graph_of(layout)
