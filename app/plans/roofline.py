"""Conversion of counted operations and bytes to a specification's layers, by roofline model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.analysis.planning.transformer import Accelerator, LayerWork, roofline_ms


@dataclass(frozen=True, slots=True)
class CountedLayer:
    """Counted work of a layer for one microbatch, forward and backward."""

    name: str
    forward: LayerWork
    backward: LayerWork


def layer_documents(
    layers: Sequence[CountedLayer], accelerator: Accelerator
) -> list[dict[str, Any]]:
    """Return ``model.layers`` of a specification that is ``profiled_on`` the device."""
    return [
        {
            "forward_ms": roofline_ms(layer.forward, accelerator),
            "backward_ms": roofline_ms(layer.backward, accelerator),
            "parameter_bytes": layer.forward.parameter_bytes,
            "output_bytes": layer.forward.output_bytes,
            "stored_activation_bytes": layer.forward.stored_bytes,
        }
        for layer in layers
    ]


def times_of(layers: Sequence[CountedLayer], accelerator: Accelerator) -> dict[str, list[float]]:
    """Return ``forward_ms`` and ``backward_ms`` of a device for a specification."""
    documents = layer_documents(layers, accelerator)
    return {key: [row[key] for row in documents] for key in ("forward_ms", "backward_ms")}
