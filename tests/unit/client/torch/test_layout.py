from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.support.extras import of_real_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

torch = of_real_jobs("torch")

from paceline_client.torch.layout import (  # noqa: E402
    Layout,
    LayoutError,
    consecutive,
    find_layout,
    layers_of,
)


@dataclass
class Mesh:
    """The interface of a `DeviceMesh` on one rank."""

    sizes: dict[str, int]
    places: dict[str, int]

    @property
    def mesh_dim_names(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    def size(self, index: int) -> int:
        return list(self.sizes.values())[index]

    def get_local_rank(self, name: str) -> int:
        return self.places[name]


def test_a_mesh_tells_sizes_and_place() -> None:
    mesh = Mesh({"pp": 4, "dp": 2, "tp": 8}, {"pp": 3, "dp": 1, "tp": 5})
    layout = find_layout(61, 64, mesh=mesh)
    assert layout == Layout(dp=2, pp=4, tp=8, dp_rank=1, pp_rank=3, tp_rank=5)
    assert not layout.first_of_cell
    assert layout.sizes() == {"dp": 2, "pp": 4, "tp": 8, "cp": 1, "vpp": 1, "world": 64}


def test_two_data_parallel_dimensions_are_one() -> None:
    mesh = Mesh({"dp_replicate": 2, "dp_shard": 4}, {"dp_replicate": 1, "dp_shard": 2})
    assert find_layout(6, 8, mesh=mesh) == Layout(dp=8, dp_rank=6)


def test_ranks_that_share_experts_are_data_parallel_ones_and_neighbors() -> None:
    mesh = Mesh({"pp": 2, "dp": 2, "ep": 4}, {"pp": 1, "dp": 1, "ep": 2})
    assert find_layout(14, 16, mesh=mesh) == Layout(dp=8, pp=2, ep=4, dp_rank=6, pp_rank=1)
    apart = Mesh({"ep": 4, "dp": 2}, {"ep": 2, "dp": 1})
    assert find_layout(5, 8, mesh=apart) == Layout(dp=8, dp_rank=5)
    with_context = Mesh({"dp": 2, "ep": 2, "cp": 2}, {"dp": 1, "ep": 1, "cp": 1})
    assert find_layout(7, 8, mesh=with_context).ep == 2


@pytest.mark.parametrize(
    ("ranks", "among", "size"),
    [([2, 3], range(4), 2), ([4, 0], range(0, 16, 4), 2), ([0, 2], range(4), 1), ([0, 1], [0], 1)],
)
def test_neighbors_are_distinguished_from_others(
    ranks: Sequence[int], among: Sequence[int], size: int
) -> None:
    assert consecutive(ranks, among) == size


def test_without_anything_every_rank_is_a_data_parallel_one() -> None:
    assert find_layout(3, 8) == Layout(dp=8, dp_rank=3)


@pytest.mark.parametrize(
    ("mesh", "says"),
    [
        (Mesh({"dp": 2, "pp": 2}, {"dp": 0, "pp": 0}), "there are 8 ranks"),
        (Mesh({"dp": 2, "expert": 4}, {"dp": 0, "expert": 0}), "'expert' is none of"),
        (Mesh({"dp": 4, "pp": 2}, {"dp": 4, "pp": 0}), "dp_rank 4 of 4"),
    ],
)
def test_a_mesh_that_does_not_tell_all_is_refused_with_what_to_give(mesh: Mesh, says: str) -> None:
    with pytest.raises(LayoutError, match=says):
        find_layout(0, 8, mesh=mesh)


def test_layers_are_the_items_of_the_longest_list() -> None:
    block = torch.nn.ModuleList([torch.nn.Linear(1, 1) for _ in range(3)])
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([torch.nn.Sequential(block) for _ in range(5)])
    assert layers_of([model]) == 5
    assert layers_of([model, model]) == 10
    assert layers_of([torch.nn.Linear(1, 1)]) is None
