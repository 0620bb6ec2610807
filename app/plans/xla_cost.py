"""Layer costs of a JAX model from XLA's cost analysis, the approach of Ditto.

Each layer's forward and backward pass is compiled for the available backend but never run. Requires
Paceline's extra ``xla`` to be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from app.analysis.planning.transformer import LayerWork
from app.plans.roofline import CountedLayer

JaxLayer = tuple[str, Callable[[Any, Any], Any], Any]


def count_xla(layers: Sequence[JaxLayer], example: Any) -> tuple[CountedLayer, ...]:  # noqa: ANN401 - an array of JAX or of numpy
    """Return the counted work of a model's layers that run one after another.

    Parameters
    ----------
    layers : sequence of (name, function, parameters)
        Each function takes its parameters (a tree of arrays) and the output of the previous layer.
    example : array
        The first layer's input for one microbatch; only its shape and type matter.
    """
    counted = []
    given = jax.ShapeDtypeStruct(np.shape(example), jax.dtypes.canonicalize_dtype(example.dtype))
    for name, function, parameters in layers:
        shapes = jax.eval_shape(lambda tree: tree, parameters)
        output = jax.eval_shape(function, shapes, given)
        forward = _compile(function, shapes, given)
        both = _compile(_with_gradient(function, given), shapes, given, output)
        flops, traffic = _analysis(forward)
        all_flops, all_traffic = _analysis(both)
        size, stored = _bytes(shapes), _stored_bytes(function, shapes, given)
        counted.append(
            CountedLayer(
                name,
                LayerWork(flops, traffic, size, _bytes(output), stored),
                LayerWork(
                    max(all_flops - flops, 0.0),
                    max(all_traffic - traffic, 0.0),
                    size,
                    _bytes(given),
                    0.0,
                ),
            )
        )
        given = output
    return tuple(counted)


def _with_gradient(function: Callable[[Any, Any], Any], given: Any) -> Callable[..., Any]:  # noqa: ANN401 - JAX's shape
    """Return a function of (parameters, input, cotangent) that runs forward and backward."""
    differentiable = np.issubdtype(given.dtype, np.floating)

    def both(parameters: Any, value: Any, cotangent: Any) -> Any:  # noqa: ANN401 - trees of arrays
        if differentiable:
            output, pull_back = jax.vjp(function, parameters, value)
        else:
            output, pull_back = jax.vjp(lambda tree: function(tree, value), parameters)
        return output, pull_back(cotangent)

    return both


def _compile(function: Callable[..., Any], *shapes: Any) -> Any:  # noqa: ANN401 - JAX's own
    return jax.jit(function).lower(*shapes).compile()


def _analysis(compiled: Any) -> tuple[float, float]:  # noqa: ANN401 - JAX's own
    """Return the number of operations and the accessed bytes of a compiled function."""
    analysis = compiled.cost_analysis()
    table = analysis[0] if isinstance(analysis, (list, tuple)) else analysis
    return float(table.get("flops", 0.0)), float(table.get("bytes accessed", 0.0))


def _stored_bytes(function: Callable[[Any, Any], Any], parameters: Any, given: Any) -> float:  # noqa: ANN401 - trees of shapes
    """Return the bytes saved for the backward pass, excluding parameters."""

    def pull_back_of(tree: Any, value: Any) -> Any:  # noqa: ANN401 - trees of arrays
        return jax.vjp(lambda inner: function(inner, value), tree)[1]

    residuals = jax.eval_shape(pull_back_of, parameters, given)
    return max(_bytes(residuals) - _bytes(parameters), 0.0)


def _bytes(tree: Any) -> float:  # noqa: ANN401 - a tree of shapes
    leaves = jax.tree_util.tree_leaves(tree)
    return float(sum(np.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves))
