"""Checks of layers, plans and trainings on all ranks; the tests judge the results."""

from __future__ import annotations

import io
from typing import Any, Final

import torch
import torch.distributed as dist

from paceline_client.tensor import (
    ColumnParallelLinear,
    CpuWatch,
    Granularity,
    Imputation,
    Method,
    Plan,
    RankShare,
    RowParallelLinear,
    TensorGroup,
    Transport,
    Workload,
    pre_test,
)
from paceline_client.tensor.layers import UnitsAwayError
from tests.tensor.worker.plain import PlainBlock
from tests.tensor.worker.training import (
    HEADS,
    HIDDEN,
    PLANNED,
    STEPS,
    difference,
    identical,
    new_block,
    new_training,
    planned_training,
    train,
)

_SIZE: Final = 4
_SLOW: Final = 2

# The straggler gives up 14 of 16 columns, a lesser straggler three.
EVEN: Final = Plan(
    1,
    Method.MIGRATE,
    16,
    _SIZE,
    (RankShare(_SLOW, 0, ((3, 5), (0, 5), (1, 4))),),
)
UNEVEN: Final = Plan(
    2,
    Method.WATERFILL,
    16,
    _SIZE,
    (RankShare(_SLOW, 0, ((0, 6), (1, 2), (3, 5))), RankShare(1, 0, ((0, 3),))),
)
STICKY: Final = Plan(3, Method.STICKY, UNEVEN.columns, _SIZE, UNEVEN.ranks)
STICKY_EVEN: Final = Plan(4, Method.STICKY, EVEN.columns, _SIZE, EVEN.ranks)
# The remaining share of a rank's four heads is less than half a head, so it keeps none.
NEARLY_ALL: Final = Plan(
    8, Method.MIGRATE, 16, _SIZE, (RankShare(_SLOW, 0, ((0, 5), (1, 5), (3, 5))),)
)
STICKY_NEARLY_ALL: Final = Plan(9, Method.STICKY, 16, _SIZE, NEARLY_ALL.ranks)
ZERO: Final = Plan(5, Method.ZERO, 16, _SIZE, (RankShare(_SLOW, 12),))
SEMI: Final = Plan(6, Method.SEMI, 16, _SIZE, (RankShare(_SLOW, 6, ((0, 3), (3, 4))),))
WITHDRAWN: Final = Plan(7, Method.NONE, 16, _SIZE)

LOSS_FREE: Final = {
    "migrate": ((EVEN,), Granularity.COLUMNS),
    "waterfill": ((UNEVEN,), Granularity.COLUMNS),
    "migrate_units": ((EVEN,), Granularity.HIDDEN_UNITS),
    "waterfill_units": ((UNEVEN,), Granularity.HIDDEN_UNITS),
    "sticky": ((STICKY,), Granularity.COLUMNS),
    "nearly_all": ((NEARLY_ALL, STICKY_NEARLY_ALL), Granularity.HIDDEN_UNITS),
    "one_after_the_other": ((STICKY, STICKY_EVEN, EVEN, WITHDRAWN, STICKY), Granularity.COLUMNS),
}
IN_SINGLE_PRECISION: Final = ("waterfill", "sticky")


def bit_identity() -> dict[str, bool]:
    """Compare with plain layers: without a plan, after one, and with a plan without effect."""
    answers: dict[str, bool] = {}
    tp = TensorGroup()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        plain = PlainBlock(new_block(tp, dtype), HIDDEN // HEADS)
        reference = train(new_training(plain), STEPS, dtype)
        ours = train(new_training(new_block(tp, dtype)), STEPS, dtype)
        answers[str(dtype)] = identical(ours, reference)
        nothing = planned_training(tp, (WITHDRAWN,), dtype=dtype)
        answers[f"{dtype}, with a plan of nothing"] = identical(nothing, reference)
    return answers


def loss_free() -> dict[str, dict[str, tuple[float, float]]]:
    """Return the largest relative differences of loss and gradients over 20 steps."""
    answers: dict[str, dict[str, tuple[float, float]]] = {}
    for dtype in (torch.float64, torch.float32):
        reference = train(new_training(new_block(TensorGroup(), dtype)), STEPS, dtype)
        # In float32 two plans only: others compute the same sums in another order.
        exact = dtype is torch.float64
        transports = Transport if exact else (Transport.SCATTER,)
        names = LOSS_FREE if exact else IN_SINGLE_PRECISION
        for transport in transports:
            tp = TensorGroup(transport=transport)
            answers[f"{dtype} {transport.value}"] = {
                name: difference(planned_training(tp, plans, granularity, dtype), reference)
                for name in names
                for plans, granularity in [LOSS_FREE[name]]
            }
    return answers


def pruned() -> dict[str, dict[str, Any]]:
    """Return the effect of left-out columns or units on gradients, weights and state."""
    answers: dict[str, dict[str, Any]] = {}
    for plan in (ZERO, SEMI):
        for granularity in Granularity:
            training = new_training(new_block(TensorGroup()))
            tp = TensorGroup()
            workload = Workload(training.model, tp, training.optimizer, granularity=granularity)
            train(training, 3)
            workload.apply(plan)
            sites = list(workload._sites.values())
            before = {
                member.parameter: _copies(training.optimizer, member.parameter)
                for site in sites
                for member in site.members
            }
            train(training, 3)
            still, zero, moved = True, True, True
            for site in sites:
                lost = site.shed.pruned if site.shed else torch.zeros(0).long()
                for member in site.members:
                    index = member.index(lost)
                    others = torch.ones(member.parameter.shape[member.dim], dtype=torch.bool)
                    others[index] = False
                    zero &= not member.parameter.grad.index_select(member.dim, index).any()
                    now = _copies(training.optimizer, member.parameter)
                    for key, value in before[member.parameter].items():
                        was, is_now = value.movedim(member.dim, 0), now[key].movedim(member.dim, 0)
                        still &= torch.equal(was[index], is_now[index])
                        moved &= not torch.equal(was[others], is_now[others])
            answers[f"{plan.method.value} {granularity.value}"] = {
                "pruned": sum(len(site.shed.pruned) for site in sites if site.shed),
                "units": sum(site.units for site in sites),
                "zero": zero,
                "still": still,
                "moved": moved,
                "lineage": [len(row.kept) for row in workload.lineage()],
            }
            workload.close()
    return answers


def _copies(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    state = {
        key: value.clone()
        for key, value in optimizer.state[parameter].items()
        if value.shape == parameter.shape
    }
    return {"weight": parameter.detach().clone(), **state}


def formula() -> dict[str, bool]:
    """Compare a row-parallel layer with kept columns k with the paper's formulas."""
    tp = TensorGroup()
    torch.manual_seed(1)
    layer = RowParallelLinear(64, 24, tp, bias=False).double()
    workload = Workload(layer, tp)
    workload.apply(ZERO)
    x = torch.randn(3, 5, 16, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    dy = torch.randn(3, 5, 24, dtype=torch.float64)
    y.backward(dy)
    shed = layer.site.shed
    keeps = torch.ones(16, dtype=torch.bool)
    if shed is not None:
        keeps[shed.pruned] = False
    flat, dflat = x.detach().reshape(-1, 16), dy.reshape(-1, 24)
    expected = flat[:, keeps] @ layer.weight.detach()[:, keeps].t()
    dist.all_reduce(expected)
    dx, dw = torch.zeros(15, 16).double(), torch.zeros(24, 16).double()
    dx[:, keeps] = dflat @ layer.weight.detach()[:, keeps]
    dw[:, keeps] = dflat.t() @ flat[:, keeps]
    return {
        "kept": int(keeps.sum()) == (4 if tp.rank == _SLOW else 16),
        "shapes": y.shape == (3, 5, 24)
        and x.grad.shape == x.shape
        and layer.weight.grad.shape == layer.weight.shape,
        "output": torch.allclose(y.reshape(-1, 24), expected, rtol=1e-12),
        "input_gradient": torch.allclose(x.grad.reshape(-1, 16), dx, rtol=1e-12, atol=0),
        "weight_gradient": torch.allclose(layer.weight.grad, dw, rtol=1e-12, atol=0),
        "exact_zeros": not x.grad[..., ~keeps].any() and not layer.weight.grad[:, ~keeps].any(),
    }


def imputed() -> dict[str, bool]:
    """Return the imputed gradients of a column-parallel layer's left-out columns."""
    answers: dict[str, bool] = {}
    for imputation in (Imputation.SAME, Imputation.AVERAGE):
        tp = TensorGroup()
        torch.manual_seed(1)
        layer = ColumnParallelLinear(16, 24, tp).double()
        workload = Workload(layer, tp, imputation=imputation)
        x = torch.randn(5, 16, dtype=torch.float64)
        layer(x).sum().backward()
        whole = layer.weight.grad.clone()
        workload.apply(ZERO)
        layer.weight.grad = None
        layer(2 * x).sum().backward()
        shed, gradient = layer.site.shed, layer.weight.grad
        if shed is None:
            answers[imputation.value] = torch.equal(gradient, 2 * whole)
            continue
        lost, keeps = shed.pruned, shed.kept.index
        if imputation is Imputation.SAME:
            expected = whole[:, lost]
        else:
            expected = gradient[:, keeps].mean(dim=1, keepdim=True).expand(-1, len(lost))
        answers[imputation.value] = torch.equal(gradient[:, lost], expected)
    return answers


def shares() -> dict[str, float]:
    """Return this rank's share of work under plans: by units, and by the plan itself."""
    answers: dict[str, float] = {}
    for name, plan, granularity in (
        ("zero", ZERO, Granularity.COLUMNS),
        ("zero_units", ZERO, Granularity.HIDDEN_UNITS),
        ("waterfill", UNEVEN, Granularity.COLUMNS),
        ("waterfill_units", UNEVEN, Granularity.HIDDEN_UNITS),
        ("sticky", STICKY, Granularity.COLUMNS),
        ("sticky_units", STICKY, Granularity.HIDDEN_UNITS),
    ):
        tp = TensorGroup()
        workload = Workload(new_block(tp), tp, granularity=granularity)
        without = workload.share
        workload.apply(plan)
        answers[name] = workload.share
        answers[f"{name} off"] = workload.share - plan.computed(tp.rank)
        workload.close()
        answers[f"{name} without"] = max(abs(without - 1), abs(workload.share - 1))
    return answers


def pre_tested() -> dict[str, list[int]]:
    """Return the columns at which costs are sampled, after which no plan is in force."""
    tp = TensorGroup(watch=CpuWatch())
    training = new_training(new_block(tp))
    workload = Workload(training.model, tp, training.optimizer)
    costs = pre_test(workload, tp, lambda: train(training, 1), steps=1)
    return {
        "communicate": [columns for columns, seconds, _ in costs.communicate if seconds >= 0],
        "senders": [senders for *_, senders in costs.communicate],
        "extract": [columns for columns, seconds in costs.extract if seconds >= 0],
        "left": [len(workload.lineage())],
        "columns": [workload.columns],
    }


def replicated() -> dict[str, bool]:
    """Return whether replicated values stay equal bit by bit on all ranks."""
    answers: dict[str, bool] = {}
    for name, plans, granularity in (
        ("zero", (ZERO,), Granularity.COLUMNS),
        ("zero_units", (ZERO,), Granularity.HIDDEN_UNITS),
        ("semi", (SEMI,), Granularity.COLUMNS),
        ("semi_units", (SEMI,), Granularity.HIDDEN_UNITS),
        ("waterfill", (UNEVEN,), Granularity.COLUMNS),
        ("sticky", (STICKY,), Granularity.COLUMNS),
    ):
        training = planned_training(TensorGroup(), plans, granularity)
        equal = True
        for gradients in training.gradients:
            for parameter, gradient in gradients.items():
                if "norm" in parameter or parameter.endswith("second_bias"):
                    first = gradient.clone()
                    dist.broadcast(first, 0)
                    equal &= torch.equal(first, gradient)
        answers[name] = equal
    return answers


def checkpoints() -> dict[str, bool]:
    """Return checkpoints taken under plans, and restored without a plan."""
    answers: dict[str, bool] = {}
    tp = TensorGroup()
    reference = train(new_training(new_block(tp)), STEPS)
    for name, plan in (("migrate", EVEN), ("sticky", STICKY)):
        training = new_training(new_block(tp))
        workload = Workload(training.model, tp, training.optimizer)
        train(training, PLANNED.start)
        workload.apply(plan)
        refused = False
        try:
            training.model.state_dict()
        except UnitsAwayError:
            refused = True
        answers[f"{name}: refused while away"] = refused == (name == "sticky")
        with workload.whole():
            written = io.BytesIO()
            torch.save([training.model.state_dict(), training.optimizer.state_dict()], written)
        written.seek(0)
        model_state, optimizer_state = torch.load(written)
        restored = new_training(new_block(tp))
        restored.model.load_state_dict(model_state)
        restored.optimizer.load_state_dict(optimizer_state)
        train(training, 4)
        restored.losses = list(training.losses[: PLANNED.start])
        train(restored, 4)
        answers[f"{name}: goes on alike"] = all(
            abs(float(a - b)) <= 1e-9 * abs(float(b))
            for a, b in zip(training.losses, restored.losses, strict=True)
        )
        workload.close()
        shapes = {key: value.shape for key, value in training.model.state_dict().items()}
        answers[f"{name}: whole"] = shapes == {
            key: value.shape for key, value in reference.model.state_dict().items()
        }
    return answers
