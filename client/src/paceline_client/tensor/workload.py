"""Carries out plans on a model: which of its units each rank leaves out, lends or holds."""

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
from paceline_client.tensor.units import Household, table_of


@dataclass(frozen=True, slots=True)
class Lineage:
    """A row of the lineage table (the paper's section III-A)."""

    layer: str  # the layer's name, or the pair's
    matrix: str  # ``weight``; the input's columns are the same
    kept: torch.Tensor  # tensor of int64: where the columns that are computed belong


class Workload:
    """The places of a model where work can be shed, and the plan in force there.

    Parameters
    ----------
    model : torch.nn.Module
        With layers and pairs of this package, or adapted ones.
    optimizer : torch.optim.Optimizer, optional
        Of the model; without it nothing is restored after its steps, and what moved has no state.
    granularity : Granularity
        For all methods but sticky migration, which moves hidden units.
    selection : Selection
    imputation : Imputation
        Other than `ZERO` for columns only.
    seed : int
        Of the choice at random.

    Raises
    ------
    ValueError
        If the model has no layer of which work can be shed.
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
        self._households: dict[str, Household] = {
            name: module.household
            for name, module in model.named_modules()
            if isinstance(getattr(module, "household", None), Household)
        }
        columns: dict[str, Site] = {}
        for name, module in model.named_modules():
            site = getattr(module, "site", None)
            if isinstance(site, Site) and name not in self._households:
                columns[name] = site
        if granularity is Granularity.HIDDEN_UNITS:
            inside = tuple(f"{name}." for name in self._households)
            sites = {name: site for name, site in columns.items() if not name.startswith(inside)}
            sites |= {name: household.site for name, household in self._households.items()}
        else:
            sites = columns
        if not sites:
            raise ValueError("the model has no layer of which work can be shed")
        self._sites = sites
        # Of every layer, also where hidden units are shed in place of its columns.
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
        """What is in force."""
        return self._plan

    @property
    def device(self) -> torch.device:
        """Where the layers are."""
        first = next(iter(self._sites.values()))
        return first.members[0].parameter.device

    @property
    def columns(self) -> int:
        """Units of the place that has most: what a plan counts in."""
        places = [*self._sites.values(), *(one.site for one in self._households.values())]
        return max(site.units for site in places)

    @property
    def share(self) -> float:
        """What this rank computes now, as a share of what it computes without a plan."""
        return self._share

    def _computed(self) -> float:
        whole, computed = 0.0, 0.0
        for site in self._sites.values():
            kept = site.units if site.shed is None else site.shed.kept.count
            loans = () if site.shed is None else site.shed.loans
            borrowed = sum(loan.borrowed(self._tp.rank) for loan in loans)
            whole += site.work
            computed += site.work * (kept + borrowed) / site.units
        for household in self._households.values():
            held = len(household.table[self._tp.rank])
            # In addition to what is shed in the columns of its layers, which is nothing while units
            # moved.
            computed += household.site.work * (held / household.site.units - 1)
        return computed / whole

    @property
    def has_hidden_units(self) -> bool:
        """Whether units can be moved."""
        return bool(self._households)

    def take_rows(self) -> int:
        """Return how many rows of inputs went through a layer since the last call."""
        rows = max(site.rows for site in self._layers)
        for site in self._layers:
            site.rows = 0
        return rows

    def sizes(self, rows: int) -> list[dict[str, object]]:
        """Return the sizes of each kind of layers, as a report to the service has them.

        Parameters
        ----------
        rows : int
            Rows of inputs of a step.
        """
        in_steps = {id(site) for site in self._sites.values()}
        once = {id(household.site) for household in self._households.values()}
        sites = list(self._sites.values())
        sites += [one.site for one in self._households.values() if id(one.site) not in in_steps]
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
        """Return the bytes of a number of a parameter, with its optimizer's state."""
        state = self._optimizer.state.get(parameter, {}) if self._optimizer is not None else {}
        tensors = [value for value in state.values() if torch.is_tensor(value)]
        alike = [value for value in tensors if value.shape == parameter.shape]
        return int(parameter.element_size() + sum(value.element_size() for value in alike))

    def lineage(self) -> list[Lineage]:
        """Return what this rank computes of its own, where that is not everything."""
        rows: list[Lineage] = []
        for name, site in self._sites.items():
            if site.shed is not None:
                kept = site.shed.kept
                index = torch.arange(kept.count) if kept.index is None else kept.index
                rows.append(Lineage(name, "weight", index))
        return rows

    def apply(self, plan: Plan | None) -> None:
        """Put a plan in force, or none, between two steps and on all ranks together."""
        if plan is not None and not plan.sheds:
            plan = None
        moves = plan is not None and plan.method is Method.STICKY
        for household in self._households.values():
            if plan is not None and moves:
                division = divide(plan, household.site.units)
                household.move(table_of(division, self._tp.size), self._optimizer)
            else:
                household.restore_placement(self._optimizer)
        self._plan = plan
        self._divide()

    def end_epoch(self) -> None:
        """Compare the weights with those of the epoch's begin, and choose anew."""
        with self.whole():
            self._selector.end_epoch()
        self._divide()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Bring moved units home, on all ranks together, and move them again afterwards.

        Inside, `state_dict` of the model and of its optimizer are those of a model without a plan.
        """
        tables = {name: household.table for name, household in self._households.items()}
        for household in self._households.values():
            household.restore_placement(self._optimizer)
        try:
            yield
        finally:
            for name, table in tables.items():
                self._households[name].move(table, self._optimizer)

    def close(self) -> None:
        """Leave the model as it was."""
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
