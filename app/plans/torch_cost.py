"""Layer costs of a PyTorch model, counted on the meta device without computing or allocating.

Requires Paceline's extra ``torch`` to be installed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from app.analysis.planning.transformer import LayerWork
from app.plans.roofline import CountedLayer

# Names of operations that move no data and so cause no memory traffic.
_VIEWS = frozenset({"view", "reshape", "transpose", "permute", "t", "expand", "detach", "alias"})


class _Traffic(TorchDispatchMode):  # type: ignore[misc]  # without torch it is unknown
    """Counter of the bytes that all operations read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's
        types: Any,  # noqa: ANN401 - torch's
        args: Any = (),  # noqa: ANN401 - torch's
        kwargs: Any = None,  # noqa: ANN401 - torch's
    ) -> Any:  # noqa: ANN401 - as above
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__.strip("_") not in _VIEWS:
            self.bytes += sum(_size(tensor) for tensor in _tensors((args, kwargs, result)))
        return result


def count_torch(layers: Sequence[nn.Module], example: torch.Tensor) -> tuple[CountedLayer, ...]:
    """Return the counted work of a model's layers that run one after another.

    Parameters
    ----------
    layers : sequence of nn.Module
        Each layer takes the output of the previous layer. The layers are copied to the meta device.
    example : torch.Tensor
        The first layer's input for one microbatch; only its shape and type matter.
    """
    counted = []
    current = torch.empty_like(example, device="meta")
    for number, module in enumerate(layers):
        layer, current = _count(number, module, current)
        counted.append(layer)
    return tuple(counted)


def _count(
    number: int, module: nn.Module, given: torch.Tensor
) -> tuple[CountedLayer, torch.Tensor]:
    numbers = (*module.parameters(), *module.buffers())
    meta = copy.deepcopy(module, {id(tensor): _empty(tensor) for tensor in numbers})
    given = given.detach()
    if given.is_floating_point():
        given.requires_grad_()
    parameters = sum(_size(parameter) for parameter in meta.parameters())
    with _saved() as saved, FlopCounterMode(display=False) as flops, _Traffic() as traffic:
        output = meta(given)
    own = {_storage(parameter) for parameter in meta.parameters()}
    sizes = {
        _storage(tensor): tensor.untyped_storage().nbytes()
        for tensor in saved
        if _storage(tensor) not in own
    }
    forward = LayerWork(
        flops=float(flops.get_total_flops()),
        traffic_bytes=float(traffic.bytes),
        parameter_bytes=float(parameters),
        output_bytes=float(_size(output)),
        # weights are not counted, since they are stored in any case
        stored_bytes=float(sum(sizes.values())),
    )
    with FlopCounterMode(display=False) as flops, _Traffic() as traffic:
        output.backward(torch.empty_like(output))
    backward = LayerWork(
        flops=float(flops.get_total_flops()),
        traffic_bytes=float(traffic.bytes),
        parameter_bytes=forward.parameter_bytes,
        output_bytes=float(_size(given)),
        stored_bytes=0.0,
    )
    name = f"{number} {type(module).__name__}"
    return CountedLayer(name, forward, backward), output.detach()


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_like(tensor, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


@contextmanager
def _saved() -> Iterator[list[torch.Tensor]]:
    """Yield a list that collects the tensors saved for the backward pass."""
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - meta storages have no address


def _size(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
