"""Where a rank is in the job's DP × PP × TP × CP grid, read off what the job has already."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

# Names that people give to the dimensions of a device mesh.
_DIMENSIONS: Final = {
    "dp": "dp",
    "ddp": "dp",
    "data": "dp",
    "data_parallel": "dp",
    "dp_replicate": "dp",
    "dp_shard": "dp",
    "replicate": "dp",
    "shard": "dp",
    "fsdp": "dp",
    "hsdp": "dp",
    "pp": "pp",
    "pipe": "pp",
    "pipeline": "pp",
    "tp": "tp",
    "tensor": "tp",
    "model": "tp",
    "cp": "cp",
    "context": "cp",
    "dp_shard_cp": "dp",
    # To everything but experts, ranks that share experts are data-parallel ones.
    "ep": "dp",
    "expert_parallel": "dp",
    "dp_shard_mod_ep": "dp",
    "dp_shard_in_ep": "dp",
}
EXPERT_DIMENSIONS: Final = frozenset({"ep", "expert_parallel", "dp_shard_in_ep"})


class LayoutError(Exception):
    """The job's layout does not follow from what was given; the sentence says what to give."""


@dataclass(frozen=True)
class Layout:
    """Sizes of the grid, and a rank's place in it.

    Parameters
    ----------
    dp, pp, tp, cp, vpp : int
        Sizes; `vpp` is the number of model chunks of a rank.
    ep : int
        Consecutive DP ranks that share the experts of a layer; 1 where none do, or
        others than neighbors.
    dp_rank, pp_rank, tp_rank, cp_rank : int
    """

    dp: int = 1
    pp: int = 1
    tp: int = 1
    cp: int = 1
    vpp: int = 1
    ep: int = 1
    dp_rank: int = 0
    pp_rank: int = 0
    tp_rank: int = 0
    cp_rank: int = 0

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.dp * self.pp * self.tp * self.cp

    @property
    def first_of_cell(self) -> bool:
        """Whether the rank is the one that a DP × PP cell is analyzed from."""
        return self.tp_rank == 0 and self.cp_rank == 0

    def sizes(self) -> dict[str, int]:
        """Return the sizes as a session's metadata have them."""
        return {
            "dp": self.dp,
            "pp": self.pp,
            "tp": self.tp,
            "cp": self.cp,
            "vpp": self.vpp,
            "world": self.world,
        }


def find_layout(
    rank: int,
    world: int,
    *,
    mesh: Any = None,
    schedule: Any = None,
    megatron: bool = False,
) -> Layout:
    """Return the layout that a mesh, a pipeline schedule or Megatron's parallel state tell.

    Without any of them every rank is a data-parallel one.

    Raises
    ------
    LayoutError
        If they do not account for all ranks.
    """
    layout = _of_megatron() if megatron else _of_torch(rank, world, mesh, schedule)
    if layout.world != world:
        message = (
            f"dp {layout.dp} x pp {layout.pp} x tp {layout.tp} x cp {layout.cp} = {layout.world}, "
            f"but there are {world} ranks; give attach() the mesh of all ranks, or layout="
        )
        raise LayoutError(message)
    for place in fields(Layout):
        if place.name.endswith("_rank"):
            size = getattr(layout, place.name.removesuffix("_rank"))
            if not 0 <= getattr(layout, place.name) < size:
                message = f"{place.name} {getattr(layout, place.name)} of {size}: give layout="
                raise LayoutError(message)
    if layout.dp % layout.ep:
        message = f"dp {layout.dp} is no multiple of ep {layout.ep}: give layout="
        raise LayoutError(message)
    return layout


def size_of_dimension(name: str) -> str | None:
    """Return which size a dimension of a mesh is, by its name; None for any other."""
    return _DIMENSIONS.get(name)


def consecutive(ranks: Sequence[int], among: Sequence[int]) -> int:
    """Return how many ranks there are where they are neighbors among others, as all such are.

    Returns
    -------
    int
        1 where they are not.
    """
    size = len(ranks)
    blocks = [list(among[at : at + size]) for at in range(0, len(among), size)]
    return size if len(among) % size == 0 and sorted(ranks) in blocks else 1


def stages_of(schedule: Any) -> list[Any]:
    """Return this rank's stages of a schedule of `torch.distributed.pipelining`, in model order."""
    stages = getattr(schedule, "_stages", None)
    if stages is None:
        stage = getattr(schedule, "_stage", None)
        stages = [] if stage is None else [stage]
    return sorted(stages, key=lambda stage: stage.stage_index)


def _of_torch(rank: int, world: int, mesh: Any, schedule: Any) -> Layout:
    found = {} if mesh is None else _of_mesh(mesh)
    stages = stages_of(schedule)
    if stages:
        found["vpp"] = len(stages)
        if "pp" not in found:
            found |= _of_group(stages[0], rank, world, found)
    if "dp" not in found:
        others = found.get("pp", 1) * found.get("tp", 1) * found.get("cp", 1)
        found["dp"] = world // others
        if others == 1:
            found["dp_rank"] = rank
    return Layout(**found)


def _of_mesh(mesh: Any) -> dict[str, int]:
    names = mesh.mesh_dim_names
    if not names:
        if mesh.ndim == 1:
            return {"dp": mesh.size(), "dp_rank": mesh.get_local_rank()}
        message = "name the mesh's dimensions: init_device_mesh(…, mesh_dim_names=('pp', 'dp'))"
        raise LayoutError(message)
    found: dict[str, int] = {}
    for index, name in enumerate(names):
        size = size_of_dimension(str(name).lower())
        if size is None:
            message = f"mesh dimension {name!r} is none of dp, pp, tp and cp; give layout="
            raise LayoutError(message)
        length = mesh.size(index)
        found[f"{size}_rank"] = found.get(f"{size}_rank", 0) * length + mesh.get_local_rank(name)
        found[size] = found.get(size, 1) * length
        if size == "dp":
            # Neighbors only where no other data-parallel dimension lies further in.
            found["ep"] = length if str(name).lower() in EXPERT_DIMENSIONS else 1
    return found


def _of_group(stage: Any, rank: int, world: int, found: dict[str, int]) -> dict[str, int]:
    """Return the place in the pipeline, and that of the pipeline among the others."""
    import torch.distributed as dist  # noqa: PLC0415 - only a job that has it comes here

    group = stage.group or dist.group.WORLD
    ranks: Sequence[int] = sorted(dist.get_process_group_ranks(group))
    pp = len(ranks)
    result = {"pp": pp, "pp_rank": stage.group_rank}
    if "dp" in found or pp == world:
        return result
    stride = ranks[1] - ranks[0] if pp > 1 else 1
    if list(ranks) != list(range(ranks[0], ranks[0] + stride * pp, stride)):
        message = "the pipeline's ranks have no regular distance; give attach() the mesh"
        raise LayoutError(message)
    # Ranks of one pipeline are neighbors, or those of one stage are.
    dp_rank = rank // pp if stride == 1 else rank % stride + stride * (rank // (stride * pp))
    return result | {"dp": world // pp, "dp_rank": dp_rank}


def _of_megatron() -> Layout:
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        message = "attach after initialize_model_parallel()"
        raise LayoutError(message)
    return Layout(
        dp=state.get_data_parallel_world_size(),
        pp=state.get_pipeline_model_parallel_world_size(),
        tp=state.get_tensor_model_parallel_world_size(),
        cp=state.get_context_parallel_world_size(),
        vpp=state.get_virtual_pipeline_model_parallel_world_size() or 1,
        ep=_experts_of_megatron(state),
        dp_rank=state.get_data_parallel_rank(),
        pp_rank=state.get_pipeline_model_parallel_rank(),
        tp_rank=state.get_tensor_model_parallel_rank(),
        cp_rank=state.get_context_parallel_rank(),
    )


def _experts_of_megatron(state: Any) -> int:
    """Return how many data-parallel neighbors share experts.

    With context parallelism, or experts that are no tensor-parallel ones, their groups hold others
    than data-parallel ranks.
    """
    group = getattr(state, "get_expert_model_parallel_group", lambda **_: None)(
        check_initialized=False
    )
    if group is None or group.size() == 1:
        return 1
    import torch.distributed as dist  # noqa: PLC0415 - it is there then

    ranks = dist.get_process_group_ranks
    return consecutive(ranks(group), sorted(ranks(state.get_data_parallel_group())))


def layers_of(modules: Sequence[Any]) -> int | None:
    """Return the layers of a stage: the items of its longest list of modules; None without one."""
    total = 0
    for module in modules:
        lists = [
            len(part)
            for part in module.modules()
            if type(part).__name__ in {"ModuleList", "ModuleDict"} and len(part)
        ]
        if not lists:
            return None
        total += max(lists)
    return total or None
