"""A stand-in for Metis' program: it reads the same files and arguments and prints the same list.

Written from what Metis reads and prints; its search is a toy. Every node is a stage, each with its
share of the layers, as tensor-parallel, as data-parallel and, first of the list, all devices as one
stage, which no template here can be.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

NAMES = ("A100", "V100", "P100", "T4")


def read_hosts(path: Path) -> list[tuple[str, int]]:
    # one digit behind "slots="
    lines = path.read_text().splitlines()
    return [(line.split(" ")[0], int(line.split(" ")[1][6:7])) for line in lines]


def read_profiles(folder: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    found = {}
    for path in folder.glob("*.json"):
        kind = re.search(r"DeviceType\.(\w+?)_", path.name)
        degree, batch = re.search(r"tp(\d+)", path.name), re.search(r"bs(\d+)", path.name)
        assert kind
        assert degree
        assert batch
        found[kind[1], int(degree[1]), int(batch[1])] = json.loads(path.read_text())
    return found


def cost_ms(
    profiles: dict[tuple[str, int, int], dict[str, Any]],
    kinds: list[str],
    cuts: list[int],
    degree: int,
    batches: int,
) -> float:
    lengths: list[float] = []
    sync = 0.0
    for kind, (first, end) in zip(kinds, pairwise(cuts), strict=True):
        times = profiles[kind, degree, 1]["execution_time"]
        layers = times["layer_compute_total_ms"]
        lengths.append(sum(layers[first:end]))
        sync = times["forward_backward_time_ms"] - sum(layers)
    assert sync, "it takes no difference for a missing measurement"
    return sum(lengths) + (batches - 1) * max(lengths) + sync * batches


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("model_name", "model_size", "home_dir", "log_path"):
        parser.add_argument(f"--{name}")
    for name in ("hostfile_path", "clusterfile_path", "profile_data_path"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("num_layers", "gbs", "hidden_size", "sequence_length", "vocab_size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("max_profiled_tp_degree", "max_profiled_batch_size", "attention_head_size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("min_group_scale_variance", "max_permute_len"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()

    hosts = read_hosts(args.hostfile_path)
    nodes = json.loads(args.clusterfile_path.read_text())
    profiles = read_profiles(args.profile_data_path)
    for profile in profiles.values():
        assert profile["model"]["num_layers"] == args.num_layers
        assert len(profile["execution_memory"]["layer_memory_total_mb"]) == args.num_layers
        assert len(profile["model"]["parameters"]["parameters_per_layer_bytes"]) == args.num_layers
    assert all(set(node) >= {"inter_bandwidth", "memory"} for node in nodes.values())
    kinds_of = {address: nodes[address]["instance_type"] for address, _ in hosts}
    slots = hosts[0][1]
    step = args.num_layers // len(hosts)
    cuts = [*range(0, step * len(hosts), step), args.num_layers]
    results: list[tuple[Any, ...]] = []
    for order in permutations(sorted(set(kinds_of.values()), key=NAMES.index)):
        kinds = [kind for name in order for kind in kinds_of.values() if kind == name]
        shown = "(" + ", ".join(f"<DeviceType.{name}: '{name.lower()}'>" for name in order)
        shown += ",)" if len(order) == 1 else ")"
        for strategy, batches in (((1, slots), args.gbs), ((slots, 1), args.gbs // slots)):
            cost = cost_ms(profiles, kinds, cuts, strategy[1], batches)
            groups = [slots] * len(hosts)
            results.append((cost, shown, groups, [strategy] * len(hosts), batches, cuts))
        whole = [slots * len(hosts)]
        results.append((1.0, shown, whole, [(1, whole[0])], args.gbs, [0, args.num_layers]))
    lines = [
        "inter_stage_plan: and much more that was not asked for",
        f"len(costs): {len(results)}",
        "rank, cost, node_sequence, device_groups, strategies(dp_deg, tp_deg), batches, layers",
    ]
    ranked = sorted(results, key=lambda row: row[0])
    lines += [", ".join(map(str, (index + 1, *row))) for index, row in enumerate(ranked)]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
