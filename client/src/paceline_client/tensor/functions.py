"""Products of column- and row-parallel layers, with columns left out or lent to other ranks.

With kept columns k of the local weight W[O, K]: Y = X[:,k]·W[:,k]ᵀ, dX[:,k] = dY·W[:,k] and
dW[:,k] = dYᵀ·X[:,k]. For columns m, the borrowers receive W[:,m] and, in the column layer, dY, in
the row layer X[:,m]. The column layer's dX and the row layer's Y are added where they are computed,
before the existing all-reduce; the column layer's Y, the row layer's dX and every dW are returned
to their owner (the paper's section IV-A).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear

from paceline_client.tensor.group import TensorGroup
from paceline_client.tensor.plan import Loan
from paceline_client.tensor.units import Kept, Shed, Site, remember, restore


@dataclass(slots=True)
class _Borrowed:
    """Columns of W and X that this rank computes for another rank; X has two dimensions."""

    loan: Loan
    rank: int
    weight: torch.Tensor
    x: torch.Tensor

    @property
    def any(self) -> bool:
        """Whether any columns are borrowed."""
        return self.loan.borrowed(self.rank) > 0


def _product(tp: TensorGroup, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product a·b, whose time is measured."""
    with tp.watch.matmul(2 * a.shape[0] * a.shape[1] * b.shape[1]):
        return a @ b


def _forward_product(
    tp: TensorGroup, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    with tp.watch.matmul(2 * x.numel() * weight.shape[0]):
        return linear(x, weight, bias)


def _lent(loan: Loan, tensor: torch.Tensor) -> torch.Tensor:
    """Return the lent columns of a matrix, on the rank that owns them."""
    return tensor[:, loan.start : loan.stop]


def _columns(loan: Loan, rank: int) -> slice:
    """Return the positions of the columns that a rank borrows."""
    first, last = loan.slices[rank]
    return slice(loan.start + first, loan.start + last)


class ColumnProduct(torch.autograd.Function):  # type: ignore[misc]
    """Y = X·Wᵀ + b with rows of W on each rank; the backward pass sums dX over the group."""

    @staticmethod
    def forward(  # noqa: D102, PLR0913, PLR0917 - of the base class
        ctx: Any,  # noqa: ANN401 - torch has no type for it
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        site: Site,
        shed: Shed | None,
    ) -> torch.Tensor:
        tp = site.tp
        flat = x.flatten(0, -2)
        site.rows += flat.shape[0]
        borrowed: list[_Borrowed] = []
        if shed is None:
            y = _forward_product(tp, x, weight, bias)
        else:
            kept = shed.kept
            y = _forward_product(tp, kept.take(flat, 1), kept.take(weight, 1), bias)
            for loan in shed.loans:
                mine = loan.source == tp.rank
                lent = _lent(loan, weight) if mine else None
                part = tp.lend(loan, lent, weight.shape[0], weight)
                columns = _Borrowed(loan, tp.rank, part, flat[:, _columns(loan, tp.rank)])
                borrowed.append(columns)
                computed = _forward_product(tp, columns.x, part, None) if columns.any else None
                tp.give_back_sum(loan, y if mine else None, computed, y)
            y = y.reshape(*x.shape[:-1], y.shape[-1])
        ctx.save_for_backward(x, weight, *(columns.weight for columns in borrowed))
        ctx.site, ctx.shed, ctx.bias = site, shed, bias is not None
        return y

    @staticmethod
    def backward(  # noqa: D102 - of the base class
        ctx: Any,  # noqa: ANN401 - as above
        dy: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        x, weight, *lent_weights = ctx.saved_tensors
        site, shed = ctx.site, ctx.shed
        tp = site.tp
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        flat, dy_flat = x.flatten(0, -2), dy.flatten(0, -2)
        dx: torch.Tensor | None = None
        dw: torch.Tensor | None = None
        borrowed = [
            (
                _Borrowed(loan, tp.rank, part, flat[:, _columns(loan, tp.rank)]),
                _all_rows(tp, loan, dy_flat),
            )
            for loan, part in zip(shed.loans if shed else (), lent_weights, strict=True)
        ]
        work = None
        if need_x:
            dx = _input_gradient(site, shed, dy_flat, weight, borrowed).view_as(x)
            work = tp.start_all_reduce(dx)
        if need_weight:
            dw = _weight_gradient(site, shed, dy_flat, flat)
        computed = [
            _product(tp, dys.t(), columns.x) if need_weight and columns.any else None
            for columns, dys in borrowed
        ]
        if work is not None:
            tp.wait_for(work)
        if dw is not None:
            for (columns, _), part in zip(borrowed, computed, strict=True):
                loan = columns.loan
                returned = tp.give_back(loan, part, dw.shape[0], dw)
                if loan.source == tp.rank:
                    dw[:, loan.start : loan.stop] = returned
        db = dy_flat.sum(0) if ctx.bias and need_bias else None
        return dx, dw, db, None, None


class RowProduct(torch.autograd.Function):  # type: ignore[misc]
    """Y = X·Wᵀ summed over the group, with columns of X and W on each rank."""

    @staticmethod
    def forward(  # noqa: D102 - of the base class
        ctx: Any,  # noqa: ANN401 - as above
        x: torch.Tensor,
        weight: torch.Tensor,
        site: Site,
        shed: Shed | None,
    ) -> torch.Tensor:
        tp = site.tp
        flat = x.flatten(0, -2)
        site.rows += flat.shape[0]
        borrowed: list[_Borrowed] = []
        if shed is None:
            y = _forward_product(tp, x, weight, None)
        else:
            kept = shed.kept
            outputs = weight.shape[0]
            rows = outputs + flat.shape[0]
            y = _forward_product(tp, kept.take(flat, 1), kept.take(weight, 1), None)
            for loan in shed.loans:
                mine = loan.source == tp.rank
                both = torch.cat([_lent(loan, weight), _lent(loan, flat)]) if mine else None
                part = tp.lend(loan, both, rows, weight)
                columns = _Borrowed(loan, tp.rank, part[:outputs], part[outputs:])
                borrowed.append(columns)
                if columns.any:
                    y += _forward_product(tp, columns.x, columns.weight, None)
            y = y.reshape(*x.shape[:-1], y.shape[-1])
        tp.all_reduce(y)
        ctx.save_for_backward(x, weight, *(part for b in borrowed for part in (b.weight, b.x)))
        ctx.site, ctx.shed = site, shed
        return y

    @staticmethod
    def backward(  # noqa: D102 - of the base class
        ctx: Any,  # noqa: ANN401 - as above
        dy: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        x, weight, *lent = ctx.saved_tensors
        site, shed = ctx.site, ctx.shed
        tp = site.tp
        need_x, need_weight = ctx.needs_input_grad[:2]
        flat, dy_flat = x.flatten(0, -2), dy.flatten(0, -2)
        loans: tuple[Loan, ...] = shed.loans if shed else ()
        dx = _input_gradient(site, shed, dy_flat, weight) if need_x else None
        dw = _weight_gradient(site, shed, dy_flat, flat) if need_weight else None
        tokens, outputs = dy_flat.shape
        for number, loan in enumerate(loans):
            columns = _Borrowed(loan, tp.rank, *lent[2 * number : 2 * number + 2])
            parts: list[torch.Tensor] = []
            if columns.any:
                parts += [_product(tp, dy_flat, columns.weight)] if need_x else []
                parts += [_product(tp, dy_flat.t(), columns.x)] if need_weight else []
            rows = tokens * need_x + outputs * need_weight
            back = tp.give_back(loan, torch.cat(parts) if parts else None, rows, dy_flat)
            if loan.source != tp.rank:
                continue
            if dx is not None:
                dx[:, loan.start : loan.stop] = back[:tokens]
            if dw is not None:
                dw[:, loan.start : loan.stop] = back[-outputs:]
        return None if dx is None else dx.view_as(x), dw, None, None


def _all_rows(tp: TensorGroup, loan: Loan, dy: torch.Tensor) -> torch.Tensor:
    """Return the owner's dY on all ranks of the group."""
    if loan.source == tp.rank:
        dys = dy.contiguous()
    else:
        dys = torch.empty_like(dy, memory_format=torch.contiguous_format)
    tp.broadcast(loan.source, dys)
    return dys


def _input_gradient(
    site: Site,
    shed: Shed | None,
    dy: torch.Tensor,
    weight: torch.Tensor,
    borrowed: Sequence[tuple[_Borrowed, torch.Tensor]] = (),
) -> torch.Tensor:
    """Return dX; the dX of `borrowed` columns, from their owners' dY, is added."""
    tp = site.tp
    if shed is None:
        dx = _product(tp, dy, weight)
        remember(site, "dX", dx)
        return dx
    parts: list[tuple[Kept | slice, torch.Tensor]] = [
        (shed.kept, _product(tp, dy, shed.kept.take(weight, 1)))
    ]
    for columns, dys in borrowed:
        if columns.any:
            parts.append((_columns(columns.loan, tp.rank), _product(tp, dys, columns.weight)))
    return restore(site, shed, "dX", parts)


def _weight_gradient(
    site: Site, shed: Shed | None, dy: torch.Tensor, x: torch.Tensor
) -> torch.Tensor:
    if shed is None:
        dw = _product(site.tp, dy.t(), x)
        remember(site, "dW", dw)
        return dw
    own = _product(site.tp, dy.t(), shed.kept.take(x, 1))
    return restore(site, shed, "dW", [(shed.kept, own)])
