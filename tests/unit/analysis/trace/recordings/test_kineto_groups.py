from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.model import SessionMeta, Sizes
from app.errors import InvalidMetadataError, InvalidTraceError
from tests.unit.analysis.trace.bodies import LIMITS
from tests.unit.analysis.trace.recordings.kineto_files import (
    AT,
    KinetoFile,
    host_steps,
    read_trace,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


@pytest.mark.parametrize(
    ("groups", "rank", "sizes", "place"),
    [
        ({"default_pg": [0, 1, 2, 3]}, 3, Sizes(dp=1, pp=4), (0, 3)),
        # A mesh dimension of all ranks is the default group.
        ({"default_pg": [0, 1], "mesh_dp": [1]}, 1, Sizes(dp=1, pp=2), (0, 1)),
        (
            {
                "PIPELINE_MODEL_PARALLEL_GROUP": [1, 5],
                "DATA_PARALLEL_GROUP": [1, 3],
                "TENSOR_MODEL_PARALLEL_GROUP": [0, 1],
            },
            1,
            Sizes(dp=2, pp=2, tp=2),
            (0, 0),
        ),
        (
            {"mesh_pp": [3, 7], "mesh_dp_replicate": [1, 3], "mesh_dp_shard": [2, 3]},
            3,
            Sizes(dp=4, pp=2),
            (3, 0),
        ),
    ],
)
def test_process_groups_say_where_a_rank_stands(
    groups: dict[str, list[int]], rank: int, sizes: Sizes, place: tuple[int, int]
) -> None:
    file = KinetoFile(rank=rank, world=sizes.world, groups=groups)
    file.add(f"PP:{place[1]}F0", AT, 1000)
    trace = read_trace(file)

    assert trace.meta.sizes == sizes
    assert (trace.dp[0], trace.pp[0]) == place


def test_groups_without_names_need_the_sizes_apart_from_the_file() -> None:
    file = host_steps(groups={"default_pg": [0, 1, 2, 3], "undefined": [0, 2], "other": [2, 3]})
    with pytest.raises(InvalidMetadataError) as caught:
        read_trace(file)
    assert caught.value.stable_code == "metadata.missing"

    trace = read_trace(file, SessionMeta(Sizes(dp=2, pp=2)))
    assert (trace.dp[0], trace.pp[0]) == (0, 1)
    assert trace.meta.hosts == {2: "node-2"}


@pytest.mark.parametrize("config", [None, "none", 3, [], [{"pg_name": "0"}]])
@pytest.mark.parametrize(("rank", "stage"), [(0, 0), (1, 0), (2, 2)])
def test_without_groups_and_what_says_their_sizes_the_sizes_are_needed(
    config: object, rank: int, stage: int
) -> None:
    info = {"rank": rank, "world_size": 4, "pg_config": config}
    file = KinetoFile(rank=rank, fields={"distributedInfo": info})
    file.add(f"PP:{stage}F0", AT, 1000)
    with pytest.raises(
        InvalidMetadataError, match=f"rank {rank} of 4 runs stage {stage}"
    ) as caught:
        read_trace(file)
    assert caught.value.stable_code == "metadata.missing"
    assert "--meta with dp and pp" in caught.value.message
    trace = read_trace(file, SessionMeta(Sizes(dp=2, pp=2)))
    assert (trace.dp[0], trace.pp[0]) == (rank % 2, rank // 2)


def ungrouped(
    rank: int, world: int, stages: Sequence[int], groups: Mapping[str, int]
) -> KinetoFile:
    """Return a file without a list of groups, whose collectives name groups and sizes."""
    file = KinetoFile(rank=rank, fields={"distributedInfo": {"rank": rank, "world_size": world}})
    for number, stage in enumerate(stages):
        file.add(f"PP:{stage}F0", AT + 2000 * number, 1000)
    for name, size in groups.items():
        said: dict[str, Any] = {
            "Process_Group_Description": name,
            "Group_size": size,
            "Collective_name": "send",
        }
        file.add("ncclDevKernel_SendRecv", AT, 10, cat="kernel", correlation=7, **said)
    file.add("launch", AT, 10, cat="cuda_runtime", correlation=8)
    file.add("gemm", AT + 100, 100, cat="kernel", correlation=8)
    return file


@pytest.mark.parametrize(
    ("file", "sizes", "place"),
    [
        (ungrouped(3, 4, [1], {"mesh_pp": 2, "mesh_dp": 2}), Sizes(dp=2, pp=2), (1, 1)),
        (ungrouped(0, 4, [0], {"mesh_pp": 2, "mesh_dp": 2}), Sizes(dp=2, pp=2), (0, 0)),
        (
            ungrouped(5, 8, [1], {"mesh_pp": 2, "mesh_dp": 2, "mesh_tp": 2}),
            Sizes(dp=2, pp=2, tp=2),
            (0, 1),
        ),
        (
            ungrouped(2, 4, [1, 3], {"mesh_pp": 2, "mesh_dp_shard": 2}),
            Sizes(dp=2, pp=2, vpp=2),
            (0, 1),
        ),
        # A V placement, in which the first rank also has the last stage.
        (ungrouped(0, 2, [0, 3], {"mesh_pp": 2}), Sizes(dp=1, pp=2, vpp=2), (0, 0)),
        # A pipeline over the default group, which has no name.
        (ungrouped(1, 4, [1], {"default_pg": 4}), Sizes(dp=1, pp=4), (0, 1)),
    ],
)
def test_groups_of_collectives_replace_a_missing_list_of_groups(
    file: KinetoFile, sizes: Sizes, place: tuple[int, int]
) -> None:
    trace = read_trace(file)
    assert trace.meta.sizes == sizes
    assert (trace.dp[0], trace.pp[0]) == place


@pytest.mark.parametrize(
    "file",
    [
        # Another order of ranks, sizes that contradict the world size, and missing sizes.
        ungrouped(1, 4, [1], {"mesh_pp": 2, "mesh_dp": 2}),
        ungrouped(0, 8, [0], {"mesh_pp": 2, "mesh_dp": 2}),
        ungrouped(0, 4, [0], {"mesh_dp": 2}),
        ungrouped(0, 4, [0], {"default_pg": 2}),
    ],
)
def test_sizes_that_do_not_fit_are_not_believed(file: KinetoFile) -> None:
    with pytest.raises(InvalidMetadataError) as caught:
        read_trace(file)
    assert caught.value.stable_code == "metadata.missing"


def test_the_rank_may_be_in_the_name_of_the_file_only(tmp_path: Path) -> None:
    file = host_steps(fields={"distributedInfo": {"backend": "gloo"}})
    path = tmp_path / "job-rank_2.pt.trace.json"
    path.write_bytes(file.body())
    meta = SessionMeta(Sizes(dp=2, pp=2))

    assert set(decode(path, meta, limits=LIMITS, local=True).trace.rank.tolist()) == {2}
    # A body from a sender has the server's name of its spool file, without a rank.
    with pytest.raises(InvalidTraceError) as caught:
        decode(path, meta, limits=LIMITS)
    assert caught.value.stable_code == "trace.unknown_rank"
    with pytest.raises(InvalidMetadataError) as missing:
        decode(path, None, limits=LIMITS, local=True)
    assert missing.value.stable_code == "metadata.missing"


@pytest.mark.parametrize(
    "written", [str, lambda ranks: {str(rank): place for place, rank in enumerate(ranks)}]
)
@pytest.mark.parametrize("listed", [True, False], ids=["list", "map"])
def test_ranks_of_groups_may_be_a_text_or_a_map(
    written: Callable[[list[int]], object],
    listed: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    groups = {"default_pg": [0, 1, 2, 3], "mesh_pp": [1, 3], "mesh_dp": [2, 3]}
    config = [
        {"pg_name": str(number), "pg_desc": name, "ranks": written(ranks)}
        for number, (name, ranks) in enumerate(groups.items())
    ]
    said = config if listed else {str(number): one for number, one in enumerate(config)}
    info = {"rank": 3, "world_size": 4, "pg_config": said}
    file = KinetoFile(rank=3, fields={"distributedInfo": info})
    file.add("PP:1F0", AT, 1000)
    trace = read_trace(file)
    assert trace.meta.sizes == Sizes(dp=2, pp=2)
    assert (trace.dp[0], trace.pp[0]) == (1, 1)
