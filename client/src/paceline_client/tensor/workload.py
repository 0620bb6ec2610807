"""A model's work under a plan: the units that each rank leaves out, lends or holds.

`Selector` is Algorithm 1 of the paper (section III-B): random (Rd), by priority (Pri), and by
priority with a separate ratio for each layer (PriDiff). The threshold of PriDiff is not that of the
paper, the iterations of an epoch × a micro-threshold, whose default its text has lost: here it is
the γ-quantile of the variations of all layers, which needs no tuning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import torch
from torch import nn

from paceline_client.tensor.group import TensorGroup
from paceline_client.tensor.plan import Division, Granularity, Method, Plan, divide
from paceline_client.tensor.units import (
    Imputation,
    Kept,
    Kind,
    Member,
    Placement,
    Shed,
    Site,
    table_of,
)

# Minimum ratio of left-out units of a layer, relative to the plan's ratio.
_DECAY: Final = 0.8
_BISECTIONS: Final = 60


class Selection(Enum):
    """The method by which the units to leave out are chosen."""

    RANDOM = "random"
    PRIORITY = "priority"
    PRIORITY_BY_LAYER = "priority_by_layer"


@dataclass(eq=False, slots=True)
class _Tracked:
    """The measured changes of a site's units."""

    site: Site
    old: list[torch.Tensor]  # the members at the begin of the epoch
    pruned: torch.Tensor  # (units,): whether a unit was left out in this epoch
    # (units,): mean change of each unit's numbers in the last epoch in which it was computed
    variation: torch.Tensor | None = None


class Selector:
    """Chooses the units to leave out, from their changes if the selection depends on them.

    `sites` have the same names on all ranks. `seed` is the seed of random choices, also between
    units of equal change. `PRIORITY` and `PRIORITY_BY_LAYER` keep a copy of the weights, compared
    once per epoch; before the first comparison they choose at random.
    """

    def __init__(self, sites: dict[str, Site], selection: Selection, seed: int = 0) -> None:
        self._selection = selection
        self._generator = torch.Generator().manual_seed(seed)
        self._tracked = {
            name: _Tracked(site, self._copies(site), torch.zeros(site.units, dtype=torch.bool))
            for name, site in sites.items()
        }

    def end_epoch(self) -> None:
        """Measure how much the weights have changed since the beginning of the epoch.

        Units that were left out keep their earlier variation: their weights did not change because
        they were left out, and with a variation of zero they would never be computed again.
        """
        if self._selection is Selection.RANDOM:
            return
        for tracked in self._tracked.values():
            site = tracked.site
            changed = _variation(site, tracked.old)
            if tracked.variation is not None:
                changed = torch.where(tracked.pruned, tracked.variation, changed)
            elif bool(tracked.pruned.any()):
                # A unit that was not computed in the whole epoch gets the average variation.
                fresh = changed[~tracked.pruned]
                mean = fresh.mean() if fresh.numel() else changed.new_zeros(())
                changed = torch.where(tracked.pruned, mean, changed)
            tracked.variation = changed
            tracked.old = self._copies(site)
            tracked.pruned = torch.zeros_like(tracked.pruned)

    def counts(self, wanted: dict[str, int], most: dict[str, int]) -> dict[str, int]:
        """Return the number of units that each site leaves out.

        `wanted` is the number of the plan for each site, `most` the number from which the site can
        choose.
        """
        variations = {
            name: variation
            for name in wanted
            if (variation := self._tracked[name].variation) is not None
        }
        if (
            self._selection is not Selection.PRIORITY_BY_LAYER
            or not any(wanted.values())
            or len(variations) < len(wanted)
        ):
            return wanted
        work = {name: float(self._tracked[name].site.work) for name in wanted}
        units = {name: self._tracked[name].site.units for name in wanted}
        gamma = sum(work[name] * wanted[name] / units[name] for name in wanted) / sum(work.values())
        # In place of the paper's iterations × micro-threshold: a share γ of all units is below it.
        threshold = torch.quantile(torch.cat(list(variations.values())).double(), gamma)
        own = {
            name: float((variation < threshold).double().mean())
            for name, variation in variations.items()
        }
        floor = _DECAY * gamma
        top = {name: most[name] / units[name] for name in wanted}
        ratios = project({name: max(own[name], floor) for name in wanted}, work, gamma, floor, top)
        return {name: round(ratios[name] * units[name]) for name in wanted}

    def choose(self, name: str, count: int, among: int) -> torch.Tensor:
        """Return which of a site's first `among` units to leave out, in ascending order."""
        tracked = self._tracked[name]
        order = torch.randperm(among, generator=self._generator)
        if self._selection is not Selection.RANDOM and tracked.variation is not None:
            # A stable sort of a random permutation chooses at random between units with equal
            # variation.
            order = order[torch.argsort(tracked.variation[:among][order], stable=True)]
        chosen = order[:count].sort().values
        tracked.pruned[chosen] = True
        return chosen

    def _copies(self, site: Site) -> list[torch.Tensor]:
        if self._selection is Selection.RANDOM:
            return []
        return [member.parameter.detach().clone() for member in site.members]


def _variation(site: Site, old: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean absolute change of the elements of each unit."""
    total = torch.zeros(site.units, dtype=torch.float64)
    numbers = 0
    for member, before in zip(site.members, old, strict=True):
        change = (member.parameter.detach() - before).abs()
        by_unit = member.by_unit(change)
        total += by_unit.double().sum(dim=1).cpu()
        numbers += by_unit.shape[1]
    return total / numbers


def project(
    ratios: dict[str, float],
    weights: dict[str, float],
    mean: float,
    low: float,
    high: dict[str, float],
) -> dict[str, float]:
    """Return the nearest ratios with weighted mean `mean`, each between `low` and its `high`.

    `low` is at most `mean`. If the upper bounds do not allow the mean, each ratio is its upper
    bound.
    """

    def shifted(by: float) -> dict[str, float]:
        return {
            name: min(max(ratio + by, min(low, high[name])), high[name])
            for name, ratio in ratios.items()
        }

    whole = sum(weights.values())
    below, above = -1.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (below + above) / 2
        now = shifted(middle)
        if sum(weights[name] * now[name] for name in now) / whole < mean:
            below = middle
        else:
            above = middle
    return shifted(above)


@dataclass(slots=True)
class _Saved:
    """The left-out part of a parameter and of its optimizer state, before a step."""

    parameter: torch.nn.Parameter
    dim: int
    index: torch.Tensor
    data: torch.Tensor
    state: dict[Any, torch.Tensor] = field(default_factory=dict)


class Restorer:
    """Hooks of an optimizer's steps that keep the left-out units of `sites` unchanged.

    The optimizer has its state per parameter, in tensors of the parameter's shape.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, sites: Callable[[], list[Site]]) -> None:
        self._optimizer = optimizer
        self._sites = sites
        self._saved: list[_Saved] = []
        self._hooks = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _before(self, *_: object) -> None:
        self._saved = [
            self._save(member, site.shed.pruned)
            for site in self._sites()
            if site.shed is not None
            and site.imputation is Imputation.ZERO
            and site.shed.pruned.numel()
            for member in site.members
        ]

    def _save(self, member: Member, units: torch.Tensor) -> _Saved:
        index = member.index(units)
        parameter = member.parameter
        saved = _Saved(parameter, member.dim, index, parameter.data.index_select(member.dim, index))
        for key, value in self._state(parameter).items():
            saved.state[key] = value.index_select(member.dim, index)
        return saved

    def _state(self, parameter: torch.nn.Parameter) -> dict[Any, torch.Tensor]:
        state = self._optimizer.state.get(parameter, {})
        return {
            key: value
            for key, value in state.items()
            if torch.is_tensor(value) and value.shape == parameter.shape
        }

    def _after(self, *_: object) -> None:
        with torch.no_grad():
            for saved in self._saved:
                saved.parameter.data.index_copy_(saved.dim, saved.index, saved.data)
                for key, value in self._state(saved.parameter).items():
                    # New optimizer state begins with zeros, as it would for a zero gradient.
                    before = saved.state.get(key)
                    if before is None:
                        value.index_fill_(saved.dim, saved.index, 0)
                    else:
                        value.index_copy_(saved.dim, saved.index, before)
        self._saved = []


@dataclass(frozen=True, slots=True)
class Lineage:
    """A row of the lineage table (the paper's section III-A)."""

    layer: str  # name of the layer or pair
    matrix: str  # ``weight``; the input has the same columns
    kept: torch.Tensor  # int64: the positions of the computed columns


class Workload:
    """The layers of a model whose work can be left out or lent, and the applied plan.

    Parameters
    ----------
    model : torch.nn.Module
        A model with layers and pairs of this package, or adapted ones.
    optimizer : torch.optim.Optimizer, optional
        The optimizer of the model; without it, pruned weights are not restored after its steps, and
        no optimizer state moves.
    granularity : Granularity
        Unit of all methods but sticky migration, which always moves hidden units.
    imputation : Imputation
        Gradients of columns that were left out; values other than `ZERO` are for columns only.
    seed : int
        Seed of random choices.
    """

    def __init__(  # noqa: PLR0913 - the model and how to prune it
        self,
        model: nn.Module,
        tp: TensorGroup,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        granularity: Granularity = Granularity.COLUMNS,
        selection: Selection = Selection.PRIORITY_BY_LAYER,
        imputation: Imputation = Imputation.ZERO,
        seed: int = 0,
    ) -> None:
        self._tp = tp
        self._optimizer = optimizer
        self._placements: dict[str, Placement] = {
            name: module.placement
            for name, module in model.named_modules()
            if isinstance(getattr(module, "placement", None), Placement)
        }
        columns: dict[str, Site] = {}
        for name, module in model.named_modules():
            site = getattr(module, "site", None)
            if isinstance(site, Site) and name not in self._placements:
                columns[name] = site
        if granularity is Granularity.HIDDEN_UNITS:
            inside = tuple(f"{name}." for name in self._placements)
            sites = {name: site for name, site in columns.items() if not name.startswith(inside)}
            sites |= {name: placement.site for name, placement in self._placements.items()}
        else:
            sites = columns
        if not sites:
            raise ValueError("the model has no layer whose work can be shed")
        self._sites = sites
        # All layers, even if hidden units are given up instead of the layers' columns.
        self._layers = list(columns.values())
        self._share = 1.0
        for site in sites.values():
            site.imputation = imputation
        self._selector = Selector(sites, selection, seed * tp.size + tp.rank)
        self._plan: Plan | None = None
        self._restorer = None
        if optimizer is not None:
            self._restorer = Restorer(optimizer, lambda: list(self._sites.values()))

    @property
    def plan(self) -> Plan | None:
        """The plan that is applied at present."""
        return self._plan

    @property
    def device(self) -> torch.device:
        """The device of the layers."""
        first = next(iter(self._sites.values()))
        return first.members[0].parameter.device

    @property
    def columns(self) -> int:
        """The largest number of units of a site, which is the unit of plans."""
        placed = (placement.site for placement in self._placements.values())
        return max(site.units for site in (*self._sites.values(), *placed))

    @property
    def share(self) -> float:
        """The work of this rank, relative to its work without a plan."""
        return self._share

    def _computed(self) -> float:
        whole, computed = 0.0, 0.0
        for site in self._sites.values():
            kept = site.units if site.shed is None else site.shed.kept.count
            loans = () if site.shed is None else site.shed.loans
            borrowed = sum(loan.borrowed(self._tp.rank) for loan in loans)
            whole += site.work
            computed += site.work * (kept + borrowed) / site.units
        for placement in self._placements.values():
            held = len(placement.table[self._tp.rank])
            # Moved units are added to the work of columns: no columns are given up while units have
            # moved.
            computed += placement.site.work * (held / placement.site.units - 1)
        return computed / whole

    @property
    def has_hidden_units(self) -> bool:
        """Whether the model has units that can move."""
        return bool(self._placements)

    def take_rows(self) -> int:
        """Return the number of input rows that a layer processed since the last call."""
        rows = max(site.rows for site in self._layers)
        for site in self._layers:
            site.rows = 0
        return rows

    def sizes(self, rows: int) -> list[dict[str, object]]:
        """Return the sizes of each kind of layers for a report; `rows` are the rows of a step."""
        in_steps = {id(site) for site in self._sites.values()}
        once = {id(placement.site) for placement in self._placements.values()}
        sites = list(self._sites.values())
        placed = (placement.site for placement in self._placements.values())
        sites += [site for site in placed if id(site) not in in_steps]
        whole = sum(site.work for site in self._sites.values())
        sizes: dict[tuple[object, ...], dict[str, object]] = {}
        shares: dict[tuple[object, ...], list[float]] = {}
        for site in sites:
            if id(site) in in_steps and id(site) in once:
                plans = None
            else:
                plans = "step" if id(site) in in_steps else "once"
            width = site.work // site.units
            if site.kind is Kind.HIDDEN_UNIT:
                width = sum(member.numbers for member in site.members) // 2
            parameter = site.members[0].parameter
            key = (site.kind, width, site.units, plans, parameter.dtype)
            shares.setdefault(key, []).append(site.work / whole)
            sizes[key] = {
                "kind": site.kind.value,
                "width": width,
                "tokens": rows,
                "layers": len(shares[key]),
                "value_bytes": parameter.element_size(),
                "state_bytes": self._state_bytes(parameter),
                "units": site.units,
                "share": sum(shares[key]),
                "plans": plans,
            }
        return list(sizes.values())

    def _state_bytes(self, parameter: nn.Parameter) -> int:
        """Return the bytes of an element of a parameter, including its optimizer state."""
        state = self._optimizer.state.get(parameter, {}) if self._optimizer is not None else {}
        tensors = [value for value in state.values() if torch.is_tensor(value)]
        alike = [value for value in tensors if value.shape == parameter.shape]
        return int(parameter.element_size() + sum(value.element_size() for value in alike))

    def lineage(self) -> list[Lineage]:
        """Return the units that this rank computes, for sites of which it gives up some."""
        rows: list[Lineage] = []
        for name, site in self._sites.items():
            if site.shed is not None:
                kept = site.shed.kept
                index = torch.arange(kept.count) if kept.index is None else kept.index
                rows.append(Lineage(name, "weight", index))
        return rows

    def apply(self, plan: Plan | None) -> None:
        """Apply a plan between two steps, or end it with None; all ranks call this together."""
        if plan is not None and not plan.sheds:
            plan = None
        moves = plan is not None and plan.method is Method.STICKY
        for placement in self._placements.values():
            if plan is not None and moves:
                division = divide(plan, placement.site.units)
                placement.move(table_of(division, self._tp.size), self._optimizer)
            else:
                placement.restore(self._optimizer)
        self._plan = plan
        self._shed_all()

    def end_epoch(self) -> None:
        """Measure the changes of the weights in the epoch, and choose units again."""
        with self.whole():
            self._selector.end_epoch()
        self._shed_all()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Hold all units on their own ranks inside the context; enter it on all ranks together.

        There, the `state_dict` of model and optimizer is that of a model without a plan.
        """
        tables = {name: placement.table for name, placement in self._placements.items()}
        for placement in self._placements.values():
            placement.restore(self._optimizer)
        try:
            yield
        finally:
            for name, table in tables.items():
                self._placements[name].move(table, self._optimizer)

    def close(self) -> None:
        """End the plan and remove the hooks."""
        self.apply(None)
        if self._restorer is not None:
            self._restorer.remove()

    def _shed_all(self) -> None:
        """Divide the plan over all sites, and compute this rank's share of its own work."""
        plan = self._plan
        if plan is None or plan.method is Method.STICKY:
            for site in self._sites.values():
                site.shed = None
        else:
            divisions = {name: divide(plan, site.units) for name, site in self._sites.items()}
            rank = self._tp.rank
            wanted = {name: division.resized[rank] for name, division in divisions.items()}
            most = {name: division.own(rank) for name, division in divisions.items()}
            counts = self._selector.counts(wanted, most)
            for name, site in self._sites.items():
                site.shed = self._shed(name, site, divisions[name], counts[name])
        self._share = self._computed()

    def _shed(self, name: str, site: Site, division: Division, count: int) -> Shed | None:
        own = division.own(self._tp.rank)
        if not count and not division.loans:
            return None
        device = site.members[0].parameter.device
        pruned = self._selector.choose(name, count, own) if count else torch.zeros(0).long()
        index = None
        if count:
            keeps = torch.ones(own, dtype=torch.bool)
            keeps[pruned] = False
            index = keeps.nonzero().flatten().to(device)
        kept = Kept(site.units, own - count, index)
        return Shed(kept, pruned.to(device), division.loans)
