"""Applies plans to a model: the units that each rank leaves out, lends or holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from paceline_client.tensor.group import TensorGroup
from paceline_client.tensor.plan import Division, Granularity, Method, Plan, divide
from paceline_client.tensor.restoring import Restorer
from paceline_client.tensor.selection import Selection, Selector
from paceline_client.tensor.shedding import Imputation, Kept, Kind, Shed, Site
from paceline_client.tensor.units import Placement, table_of


@dataclass(frozen=True, slots=True)
class Lineage:
    """A row of the lineage table (the paper's section III-A)."""

    layer: str  # name of the layer or pair
    matrix: str  # ``weight``; the input has the same columns
    kept: torch.Tensor  # int64: the positions of the computed columns


class Workload:
    """The layers of a model whose work can be shed, and the plan in force.

    Parameters
    ----------
    model : torch.nn.Module
        With layers and pairs of this package, or adapted ones.
    optimizer : torch.optim.Optimizer, optional
        Of the model; without it, pruned weights are not restored after its steps, and no optimizer
        state moves.
    granularity : Granularity
        For all methods but sticky migration, which moves hidden units.
    imputation : Imputation
        Other than `ZERO` for columns only.
    seed : int
        Of random choices.
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
        # All layers, also if hidden units are shed instead of their columns.
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
        """The plan in force."""
        return self._plan

    @property
    def device(self) -> torch.device:
        """The device of the layers."""
        first = next(iter(self._sites.values()))
        return first.members[0].parameter.device

    @property
    def columns(self) -> int:
        """The most units of a site, the unit of plans."""
        places = [*self._sites.values(), *(one.site for one in self._placements.values())]
        return max(site.units for site in places)

    @property
    def share(self) -> float:
        """The work of this rank, as a share of its work without a plan."""
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
            # In addition to columns of its layers, none of which are shed while units have moved.
            computed += placement.site.work * (held / placement.site.units - 1)
        return computed / whole

    @property
    def has_hidden_units(self) -> bool:
        """Whether the model has units that can move."""
        return bool(self._placements)

    def take_rows(self) -> int:
        """Return how many rows of inputs a layer processed since the last call."""
        rows = max(site.rows for site in self._layers)
        for site in self._layers:
            site.rows = 0
        return rows

    def sizes(self, rows: int) -> list[dict[str, object]]:
        """Return the sizes of each kind of layers for a report; `rows` are those of a step."""
        in_steps = {id(site) for site in self._sites.values()}
        once = {id(placement.site) for placement in self._placements.values()}
        sites = list(self._sites.values())
        sites += [one.site for one in self._placements.values() if id(one.site) not in in_steps]
        whole = sum(site.work for site in self._sites.values())
        found: dict[tuple[object, ...], dict[str, object]] = {}
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
            found[key] = {
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
        return list(found.values())

    def _state_bytes(self, parameter: nn.Parameter) -> int:
        """Return the bytes of each number of a parameter, including its optimizer's state."""
        state = self._optimizer.state.get(parameter, {}) if self._optimizer is not None else {}
        tensors = [value for value in state.values() if torch.is_tensor(value)]
        alike = [value for value in tensors if value.shape == parameter.shape]
        return int(parameter.element_size() + sum(value.element_size() for value in alike))

    def lineage(self) -> list[Lineage]:
        """Return the units that this rank computes, of sites where it sheds some."""
        rows: list[Lineage] = []
        for name, site in self._sites.items():
            if site.shed is not None:
                kept = site.shed.kept
                index = torch.arange(kept.count) if kept.index is None else kept.index
                rows.append(Lineage(name, "weight", index))
        return rows

    def apply(self, plan: Plan | None) -> None:
        """Apply a plan, or none, between two steps and on all ranks together."""
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
        self._divide()

    def end_epoch(self) -> None:
        """Compare the weights with those at the begin of the epoch, and choose units again."""
        with self.whole():
            self._selector.end_epoch()
        self._divide()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Return moved units to their ranks inside the context, on all ranks together.

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

    def _divide(self) -> None:
        self._shed_all()
        self._share = self._computed()

    def _shed_all(self) -> None:
        plan = self._plan
        if plan is None or plan.method is Method.STICKY:
            for site in self._sites.values():
                site.shed = None
            return
        divisions = {name: divide(plan, site.units) for name, site in self._sites.items()}
        rank = self._tp.rank
        wanted = {name: division.resized[rank] for name, division in divisions.items()}
        most = {name: division.own(rank) for name, division in divisions.items()}
        counts = self._selector.counts(wanted, most)
        for name, site in self._sites.items():
            site.shed = self._shed(name, site, divisions[name], counts[name])

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
