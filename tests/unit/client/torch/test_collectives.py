"""Hooks on collectives of data-parallel ranks, for any caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.extras import of_real_jobs

torch = of_real_jobs("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from torch.distributed import all_reduce as imported_before  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from paceline_client.torch.instrumentation.base import Job, Level  # noqa: E402
from paceline_client.torch.instrumentation.collectives import PROCESS_GROUPS  # noqa: E402
from paceline_client.torch.instrumentation.data_parallel import DDP  # noqa: E402
from paceline_client.torch.instrumentation.loop import OPTIMIZERS  # noqa: E402
from paceline_client.torch.layout import DATA, Layout  # noqa: E402
from paceline_client.torch.tap import Tap  # noqa: E402
from paceline_client.torch.timelines import HostTimeline  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.client.torch.conftest import Seen

GRADIENTS = "grads-reduce-scatter"
PARAMETERS = "params-all-gather"


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def tap(group: None, seen: Seen) -> Iterator[Tap]:
    del group
    tap = recording(seen, Layout(dp=2))
    yield tap
    stop(tap)


_STOPS: dict[int, list[Callable[[], None]]] = {}


def recording(seen: Seen, layout: Layout, groups: dict[str, str] | None = None) -> Tap:
    """Return a tap with hooks that record."""
    tap = Tap(HostTimeline())
    job = Job(tap, layout, groups=groups or {})
    for target in (DDP, PROCESS_GROUPS, OPTIMIZERS):
        if target.wanted(job):
            target.attach(job, Level.P2P)
    _STOPS[id(tap)] = [begin() for begin in job.on_record]
    tap.on, tap.sink = True, seen
    return tap


def stop(tap: Tap) -> None:
    tap.on = False
    for one in _STOPS.pop(id(tap)):
        one()


def tensor() -> Any:  # noqa: ANN401
    return torch.ones(4)


CALLS = {
    "all_reduce": (GRADIENTS, lambda: dist.all_reduce(tensor())),
    "imported before": (GRADIENTS, lambda: imported_before(tensor())),
    "coalesced": (GRADIENTS, lambda: dist.all_reduce_coalesced([tensor(), tensor()])),
    "asynchronous": (GRADIENTS, lambda: dist.all_reduce(tensor(), async_op=True).wait()),
    "reduce": (GRADIENTS, lambda: dist.reduce(tensor(), 0)),
    "reduce_scatter": (
        GRADIENTS,
        lambda: dist.reduce_scatter(tensor(), [tensor(), tensor()]),
    ),
    "reduce_scatter_tensor": (
        GRADIENTS,
        lambda: dist.reduce_scatter_tensor(torch.ones(2), tensor()),
    ),
    "reduce_scatter_single": (
        GRADIENTS,
        lambda: dist.reduce_scatter_single(torch.ones(2), tensor()),
    ),
    "barrier": (GRADIENTS, dist.barrier),
    "all_gather": (PARAMETERS, lambda: dist.all_gather([tensor(), tensor()], tensor())),
    "all_gather_into_tensor": (
        PARAMETERS,
        lambda: dist.all_gather_into_tensor(torch.ones(8), tensor()),
    ),
    "all_gather_single": (PARAMETERS, lambda: dist.all_gather_single(torch.ones(8), tensor())),
    "broadcast": (PARAMETERS, lambda: dist.broadcast(tensor(), 0)),
    "functional": (
        GRADIENTS,
        lambda: functional.wait_tensor(functional.all_reduce(tensor(), "sum", dist.group.WORLD)),
    ),
}


# PyTorch warns about renamed functions; programs still call them by their old names.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_collective_is_recorded_whichever_code_calls_it(name: str, tap: Tap, seen: Seen) -> None:
    op, call = CALLS[name]
    call()
    tap.end_step()
    assert seen.names() == [op]


def test_all_is_as_it_was_once_nothing_is_recorded(tap: Tap, seen: Seen) -> None:
    tap.on = False
    value = tensor()
    dist.all_reduce(value)
    stop(tap)
    _STOPS[id(tap)] = []
    dist.all_reduce(value)
    tap.end_step()
    assert not seen.operations


def test_compiled_code_is_not_compiled_anew_when_a_window_begins(group: None, seen: Seen) -> None:
    del group
    tap = Tap(HostTimeline())
    job = Job(tap, Layout(dp=2))
    undo, _ = PROCESS_GROUPS.attach(job, Level.P2P)
    compiled = torch.compile(
        lambda x: functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD)) + 1,
        backend="eager",
    )
    compiled(tensor())
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    stops = [begin() for begin in job.on_record]
    tap.on, tap.sink = True, seen
    compiled(tensor())
    tap.on = False
    for one in (*stops, *undo):
        one()

    assert graphs > 0
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    assert not seen.operations


def test_a_loop_over_parameters_is_one_collective(tap: Tap, seen: Seen) -> None:
    for _ in range(50):
        dist.all_reduce(tensor())
    tap.end_step()
    assert seen.names() == [GRADIENTS]


def test_within_a_computation_each_wait_is_recorded(tap: Tap, seen: Seen) -> None:
    with tap.computing("backward-compute", 0, None):
        works = [dist.all_reduce(tensor(), async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
    tap.end_step()
    assert seen.names() == [GRADIENTS] * 3 + ["backward-compute"]


def test_a_collective_within_a_span_is_not_recorded_twice(tap: Tap, seen: Seen) -> None:
    with tap.span(GRADIENTS):
        dist.all_reduce(tensor())
    tap.end_step()
    assert seen.names() == [GRADIENTS]


def test_groups_of_other_ranks_are_not_data_parallel(group: None, seen: Seen) -> None:
    del group
    world = dist.group.WORLD
    name = str(world.group_name)
    for groups, expected in (({}, []), ({name: DATA}, [GRADIENTS]), ({name: "cp"}, [])):
        tap = recording(seen, Layout(dp=2, pp=2), groups)
        dist.all_reduce(tensor())
        tap.end_step()
        stop(tap)
        assert seen.names() == expected
        seen.operations.clear()


def test_what_lies_between_backward_and_optimizer_is_the_optimizer_s(tap: Tap, seen: Seen) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tap.computing("backward-compute", 0, None):
        model(tensor()).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    tap.end_step()
    (_, start, took, *_), (op, begin, *_) = seen.operations
    assert op == "optimizer"
    assert begin == start + took


def test_a_module_that_a_trainer_has_wrapped_is_found_when_it_runs(seen: Seen) -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        tap = recording(seen, Layout(dp=2))
        with tap.computing("backward-compute", 0, None):
            wrapped(tensor()).sum().backward()
        tap.end_step()
        stop(tap)
    finally:
        dist.destroy_process_group()
    assert seen.names() == [GRADIENTS, "backward-compute"]
