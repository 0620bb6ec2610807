"""What a kind of action is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from app.actions.order import HangOrder, Means, Order
from app.alerts.delivery import ReceiverAnswer


@dataclass(frozen=True, slots=True)
class ActionKind:
    """A kind of action.

    `act` and `release` return what the receiver said or raise `DeliveryError`. Both are tried again
    under the same order after faults that pass: done twice, they come to the same.
    """

    name: str
    title: str  # as people call it
    # Of a frozen dataclass; forms are made from it, with descriptions and examples of its fields.
    config: TypeAdapter[Any]
    secrets: frozenset[str]  # its fields that are never shown again
    # Takes a configuration and an order, and returns the command, or what stands for it, in a line.
    describe: Callable[[Any, Order], str]
    act: Callable[[Any, Order, Means], ReceiverAnswer]
    release: Callable[[Any, Order, Means], ReceiverAnswer]
    # Whether the operator has to allow it, by naming scontrol: it acts with rights of the server.
    needs_scontrol: bool = False
    # Takes a configuration and an order, and tells of a job that hangs; None where the kind acts
    # on machines alone.
    tell_hang: Callable[[Any, HangOrder, Means], ReceiverAnswer] | None = None
