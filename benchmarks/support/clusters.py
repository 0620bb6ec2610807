"""The clusters of Ditto's evaluation, and the models that Ditto plans for them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from app.analysis.planning.spec import Spec
from app.plans.specs.spec import parse_spec

# nodes and devices per node of each type
CLUSTERS: Final[dict[str, dict[str, tuple[int, int]]]] = {
    "Ex1": {"v100": (2, 2), "3090": (2, 2)},
    "Ex2": {"v100": (2, 2), "3090": (2, 2), "a6000": (2, 2)},
    "Ex2c": {"v100": (2, 2), "3090": (2, 2), "4090": (2, 2)},
    "Ex3": {"v100": (4, 2), "3090": (3, 2), "a6000": (2, 2), "4090": (2, 2)},
    "Ex4": {"v100": (2, 4), "3090": (2, 4), "a6000": (2, 4)},
    "Ex5": {"v100": (4, 2), "3090": (4, 2), "a100": (2, 2)},
}
SPEEDS: Final[dict[str, dict[str, float]]] = {
    "code": {"v100": 1.0, "3090": 1.8, "a6000": 2.15, "4090": 2.94, "a100": 4.41},
    "paper": {"v100": 1.0, "3090": 2.0, "a6000": 2.95, "4090": 3.8, "a100": 5.99},
}
# GPT2-XL with equal blocks, on the 4090
UNIFORM_MS: Final = (1.9211, *(132.0,) * 48, 46.225)
MICROBATCHES: Final = 50


def reference_profile() -> Path | None:
    """Return the folder with the published profile of GPT2-XL; None if the environment has none."""
    given = os.environ.get("PACELINE_REFERENCE_PROFILE")
    data = os.environ.get("PACELINE_REFERENCE_DATA")
    folder = given or (data and str(Path(data).parent / "gpt2-xl-profile"))
    if not folder or not (Path(folder) / "layers.json").is_file():
        return None
    return Path(folder).resolve()


def uniform_layers() -> list[dict[str, float]]:
    """Return GPT2-XL with equal blocks, as the layers of a specification."""
    return [{"forward_ms": ms / 4, "backward_ms": ms * 3 / 4} for ms in UNIFORM_MS]


def example(
    name: str, model: dict[str, object], speeds: str = "code", **extra: object
) -> dict[str, object]:
    """Return the specification of an example as a document."""
    table = SPEEDS[speeds]
    devices = [
        {"type": kind, "nodes": nodes, "gpus_per_node": gpus, "speed": table[kind]}
        for kind, (nodes, gpus) in CLUSTERS[name].items()
    ]
    return {
        "model": model,
        "profiled_on": {"type": "4090", "speed": table["4090"]},
        "devices": devices,
        "microbatches": MICROBATCHES,
        **extra,
    }


def uniform_example(name: str, speeds: str = "code", **extra: object) -> Spec:
    """Return an example with equal blocks."""
    return parse_spec(example(name, {"layers": uniform_layers()}, speeds, **extra))


def real_example(folder: Path, name: str, speeds: str = "code", **extra: object) -> Spec:
    """Return an example with the profile in `folder`."""
    profile = json.loads((folder / "layers.json").read_text())
    return parse_spec(example(name, {"profile": profile}, speeds, **extra))
