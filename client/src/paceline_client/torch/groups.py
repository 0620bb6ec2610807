"""Expert- and context-parallel groups of a rank."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from paceline_client.torch.layout import (
    EXPERT_DIMENSIONS,
    Layout,
    LayoutError,
    consecutive,
    size_of_dimension,
)

EXPERT: Final = "ep"
CONTEXT: Final = "cp"
DATA: Final = "dp"
_KINDS: Final = (EXPERT, CONTEXT, DATA)


def find_groups(
    *, mesh: Any = None, megatron: bool = False, given: Mapping[str, Any] | None = None
) -> Mapping[str, str]:
    """Return the kind of this rank's groups, ``ep``, ``cp`` or ``dp``, by the groups' names.

    `given` are groups by kind, which take precedence over those of Megatron's parallel state (if
    `megatron`) or the mesh. Raises `LayoutError` for other kinds.
    """
    found: dict[str, Any] = {}
    if megatron:
        found |= _of_megatron()
    elif mesh is not None:
        found |= _of_mesh(mesh)
    for kind, group in (given or {}).items():
        if kind not in _KINDS:
            message = f"groups= accepts 'dp', 'ep' and 'cp', not {kind!r}"
            raise LayoutError(message)
        found[kind] = group
    return {
        str(group.group_name): kind
        for kind, group in found.items()
        if group is not None and group.size() > 1
    }


def with_experts(layout: Layout, given: Mapping[str, Any] | None) -> Layout:
    """Return the layout with the size of the given expert-parallel group.

    Only if all ranks are data-parallel: their numbers then show whether the group's ranks are
    consecutive. Otherwise `Layout` has to contain it.
    """
    group = (given or {}).get(EXPERT)
    if group is None or layout.ep > 1 or layout.world != layout.dp:
        return layout
    import torch.distributed as dist  # noqa: PLC0415 - available then

    ranks: Sequence[int] = dist.get_process_group_ranks(group)
    return replace(layout, ep=consecutive(ranks, range(layout.world)))


def _of_megatron() -> dict[str, Any]:
    state = sys.modules["megatron.core.parallel_state"]
    found = {}
    for kind, name in (
        (EXPERT, "get_expert_model_parallel_group"),
        (CONTEXT, "get_context_parallel_group"),
    ):
        # Older versions do not have all of them.
        get = getattr(state, name, None)
        if get is not None:
            found[kind] = get(check_initialized=False)
    return found


def _of_mesh(mesh: Any) -> dict[str, Any]:
    found = {}
    for name in mesh.mesh_dim_names or ():
        known = str(name).lower()
        if known in EXPERT_DIMENSIONS:
            found[EXPERT] = mesh.get_group(name)
        elif size_of_dimension(known) == CONTEXT:
            found[CONTEXT] = mesh.get_group(name)
        elif size_of_dimension(known) == DATA:
            found[DATA] = mesh.get_group(name)
    return found
