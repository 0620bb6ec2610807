"""The position of a rank in the DP × PP × TP × CP grid, and its process groups."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

_EXPERT_DIMENSIONS: Final = frozenset({"ep", "expert_parallel", "dp_shard_in_ep"})
# Common names of the dimensions of a device mesh. Ranks that share experts are data-parallel ranks.
_NAMES: Final = {
    "dp": {
        *("dp", "ddp", "data", "data_parallel", "dp_replicate", "dp_shard", "replicate", "shard"),
        *("fsdp", "hsdp", "dp_shard_cp", "dp_shard_mod_ep", *_EXPERT_DIMENSIONS),
    },
    "pp": {"pp", "pipe", "pipeline"},
    "tp": {"tp", "tensor", "model"},
    "cp": {"cp", "context"},
}


class LayoutError(Exception):
    """The job's layout is unknown; the message names the missing argument."""


@dataclass(frozen=True)
class Layout:
    """The sizes of the grid, and a rank's position in it."""

    dp: int = 1
    pp: int = 1
    tp: int = 1
    cp: int = 1
    vpp: int = 1  # model chunks of a rank
    ep: int = 1  # consecutive DP ranks that share experts; 1 if none or other ranks do
    dp_rank: int = 0
    pp_rank: int = 0
    tp_rank: int = 0
    cp_rank: int = 0

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.dp * self.pp * self.tp * self.cp

    @property
    def first_of_cell(self) -> bool:
        """Whether this rank represents its DP × PP cell in the analysis."""
        return self.tp_rank == 0 and self.cp_rank == 0

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the grid for a session's metadata."""
        names = ("dp", "pp", "tp", "cp", "vpp", "world")
        return {name: getattr(self, name) for name in names}


def find_layout(
    rank: int, world: int, *, mesh: Any = None, schedule: Any = None, megatron: bool = False
) -> Layout:
    """Return the layout of a mesh, a pipeline schedule or Megatron's parallel state.

    Without any of them, all ranks are data-parallel. Raises `LayoutError` if the layout does not
    contain all ranks.
    """
    layout = _of_megatron() if megatron else _of_torch(rank, world, mesh, schedule)
    if layout.world != world:
        message = (
            f"dp {layout.dp} x pp {layout.pp} x tp {layout.tp} x cp {layout.cp} = {layout.world}, "
            f"but there are {world} ranks; pass the mesh of all ranks or layout= to attach()"
        )
        raise LayoutError(message)
    for place in fields(Layout):
        if place.name.endswith("_rank"):
            size = getattr(layout, place.name.removesuffix("_rank"))
            if not 0 <= getattr(layout, place.name) < size:
                message = f"{place.name} {getattr(layout, place.name)} of {size}: pass layout="
                raise LayoutError(message)
    if layout.dp % layout.ep:
        message = f"dp {layout.dp} is not a multiple of ep {layout.ep}: pass layout="
        raise LayoutError(message)
    return layout


def _size_of_dimension(name: str) -> str | None:
    """Return ``dp``, ``pp``, ``tp`` or ``cp`` for a mesh dimension's name; None if unknown."""
    return next((size for size, names in _NAMES.items() if name in names), None)


def consecutive(ranks: Sequence[int], among: Sequence[int]) -> int:
    """Return the number of given ranks if they are consecutive among all ranks, else 1."""
    size = len(ranks)
    blocks = [list(among[at : at + size]) for at in range(0, len(among), size)]
    return size if len(among) % size == 0 and sorted(ranks) in blocks else 1


def stages_of(schedule: Any) -> list[Any]:
    """Return this rank's stages of a `torch.distributed.pipelining` schedule, in model order."""
    stages = getattr(schedule, "_stages", None)
    if stages is None:
        stage = getattr(schedule, "_stage", None)
        stages = [] if stage is None else [stage]
    return sorted(stages, key=lambda stage: stage.stage_index)


def _of_torch(rank: int, world: int, mesh: Any, schedule: Any) -> Layout:
    layout = {} if mesh is None else _of_mesh(mesh)
    stages = stages_of(schedule)
    if stages:
        layout["vpp"] = len(stages)
        if "pp" not in layout:
            layout |= _of_pipeline(stages[0], rank, world, has_dp="dp" in layout)
    if "dp" not in layout:
        others = layout.get("pp", 1) * layout.get("tp", 1) * layout.get("cp", 1)
        layout["dp"] = world // others
        if others == 1:
            layout["dp_rank"] = rank
    return Layout(**layout)


def _of_mesh(mesh: Any) -> dict[str, int]:
    names = mesh.mesh_dim_names
    if not names:
        if mesh.ndim == 1:
            return {"dp": mesh.size(), "dp_rank": mesh.get_local_rank()}
        message = "the mesh has no names: init_device_mesh(…, mesh_dim_names=('pp', 'dp'))"
        raise LayoutError(message)
    layout: dict[str, int] = {}
    for index, name in enumerate(names):
        size = _size_of_dimension(str(name).lower())
        if size is None:
            message = f"mesh dimension {name!r} is none of dp, pp, tp and cp; pass layout="
            raise LayoutError(message)
        length = mesh.size(index)
        layout[f"{size}_rank"] = layout.get(f"{size}_rank", 0) * length + mesh.get_local_rank(name)
        layout[size] = layout.get(size, 1) * length
        if size == "dp":
            # Ranks are consecutive only if this is the innermost data-parallel dimension.
            layout["ep"] = length if str(name).lower() in _EXPERT_DIMENSIONS else 1
    return layout


def _of_pipeline(stage: Any, rank: int, world: int, *, has_dp: bool) -> dict[str, int]:
    """Return the rank's position in its pipeline.

    Without `has_dp`, also the number of pipelines and the position of this one among them.
    """
    import torch.distributed as dist  # noqa: PLC0415 - available then

    group = stage.group or dist.group.WORLD
    ranks: Sequence[int] = sorted(dist.get_process_group_ranks(group))
    pp = len(ranks)
    result = {"pp": pp, "pp_rank": stage.group_rank}
    if has_dp or pp == world:
        return result
    stride = ranks[1] - ranks[0] if pp > 1 else 1
    if list(ranks) != list(range(ranks[0], ranks[0] + stride * pp, stride)):
        message = "the pipeline's ranks have no regular distance; pass mesh= to attach()"
        raise LayoutError(message)
    # Either the ranks of a pipeline or the ranks of a stage are consecutive.
    dp_rank = rank // pp if stride == 1 else rank % stride + stride * (rank // (stride * pp))
    return result | {"dp": world // pp, "dp_rank": dp_rank}


def _of_megatron() -> Layout:
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        message = "call attach() after initialize_model_parallel()"
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
    """Return the number of consecutive data-parallel ranks that share experts.

    With context parallelism, or experts without tensor parallelism, their groups contain other than
    data-parallel ranks.
    """
    group = getattr(state, "get_expert_model_parallel_group", lambda **_: None)(
        check_initialized=False
    )
    if group is None or group.size() == 1:
        return 1
    import torch.distributed as dist  # noqa: PLC0415 - available then

    ranks = dist.get_process_group_ranks
    return consecutive(ranks(group), sorted(ranks(state.get_data_parallel_group())))


def layers_of(modules: Sequence[Any]) -> int | None:
    """Return the number of layers of a stage: the length of its longest module list, or None."""
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


EXPERT: Final = "ep"
CONTEXT: Final = "cp"
DATA: Final = "dp"
_KINDS: Final = (EXPERT, CONTEXT, DATA)


def find_groups(
    *, mesh: Any = None, megatron: bool = False, given: Mapping[str, Any] | None = None
) -> Mapping[str, str]:
    """Return the kind of each of this rank's groups, ``ep``, ``cp`` or ``dp``, by group name.

    `given` are groups by kind, which take precedence over those of Megatron's parallel state (if
    `megatron`) or the mesh. Raises `LayoutError` for other kinds.
    """
    groups: dict[str, Any] = {}
    if megatron:
        groups |= _groups_of_megatron()
    elif mesh is not None:
        groups |= _groups_of_mesh(mesh)
    for kind, group in (given or {}).items():
        if kind not in _KINDS:
            message = f"groups= accepts 'dp', 'ep' and 'cp', not {kind!r}"
            raise LayoutError(message)
        groups[kind] = group
    return {
        str(group.group_name): kind
        for kind, group in groups.items()
        if group is not None and group.size() > 1
    }


def with_experts(layout: Layout, given: Mapping[str, Any] | None) -> Layout:
    """Return the layout with the size of the given expert-parallel group.

    The size is taken from the group only if all ranks are data-parallel: their numbers then show
    whether the group's ranks are consecutive. Otherwise `Layout` has to contain it.
    """
    group = (given or {}).get(EXPERT)
    if group is None or layout.ep > 1 or layout.world != layout.dp:
        return layout
    import torch.distributed as dist  # noqa: PLC0415 - available then

    ranks: Sequence[int] = dist.get_process_group_ranks(group)
    return replace(layout, ep=consecutive(ranks, range(layout.world)))


def _groups_of_megatron() -> dict[str, Any]:
    state = sys.modules["megatron.core.parallel_state"]
    groups = {}
    for kind, name in (
        (EXPERT, "get_expert_model_parallel_group"),
        (CONTEXT, "get_context_parallel_group"),
    ):
        # Older versions lack some of these functions.
        get = getattr(state, name, None)
        if get is not None:
            groups[kind] = get(check_initialized=False)
    return groups


def _groups_of_mesh(mesh: Any) -> dict[str, Any]:
    groups = {}
    for name in mesh.mesh_dim_names or ():
        dimension = str(name).lower()
        if dimension in _EXPERT_DIMENSIONS:
            groups[EXPERT] = mesh.get_group(name)
        elif _size_of_dimension(dimension) == CONTEXT:
            groups[CONTEXT] = mesh.get_group(name)
        elif _size_of_dimension(dimension) == DATA:
            groups[DATA] = mesh.get_group(name)
    return groups
