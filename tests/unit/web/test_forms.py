"""Forms agree with the API: every field of a kind of channel has its control."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
from pydantic import Field as Checked
from pydantic import TypeAdapter

from app.incidents.channels.registry import KINDS
from app.incidents.routing import SELECTOR
from app.web.forms import fields_of


@dataclass
class Example:
    """A configuration with each kind of control."""

    name: str
    level: Literal["low", "high"]
    address: Annotated[str, Checked(pattern=r"^https?://\S+$", examples=["https://a.example"])]
    key: str
    people: Annotated[tuple[str, ...], Checked(description="Who hears of it.")] = ()
    labels: dict[str, str] = field(default_factory=dict)
    days: tuple[Literal["mon", "tue"], ...] = ()
    count: Annotated[int, Checked(ge=1, le=9)] = 3
    note: str | None = None


EXAMPLE = TypeAdapter(Example)
SECRETS = frozenset({"address", "key"})


def test_a_control_for_every_type() -> None:
    found = {item.path: item.control for item in fields_of(EXAMPLE, "config", secrets=SECRETS)}
    assert found == {
        "config.name": "text",
        "config.level": "select",
        # An address, though secret, is shown while it is typed.
        "config.address": "text",
        "config.key": "secret",
        "config.people": "lines",
        "config.labels": "pairs",
        "config.days": "checks",
        "config.count": "number",
        "config.note": "text",
    }


def test_fields_follow_from_their_types() -> None:
    found = {item.label: item for item in fields_of(EXAMPLE, "config", prefix="x-")}
    assert [option.value for option in found["Level"].options] == ["low", "high"]
    assert (found["Count"].minimum, found["Count"].maximum) == (1, 9)
    assert found["Count"].value == "3"
    assert found["People"].hint == "Who hears of it."
    assert found["Address"].example == "https://a.example"
    assert found["Address"].id == "x-config-address"
    optional = [label for label, item in found.items() if item.optional]
    assert optional == ["People", "Labels", "Days", "Note"]


def test_a_form_holds_stored_values_but_no_secret() -> None:
    stored = {
        "name": "ops",
        "people": ["Kim", "Lee"],
        "labels": {"project": "vision"},
        "days": ["tue"],
        "key": "must not be here",
    }
    known = {"address": "hooks.example", "key": None}
    found = {
        item.path.removeprefix("config."): item
        for item in fields_of(EXAMPLE, "config", values=stored, secrets=SECRETS, stored=known)
    }
    assert found["name"].value == "ops"
    assert found["people"].value == "Kim\nLee"
    assert found["labels"].value == "project=vision"
    assert found["days"].chosen == ("tue",)
    assert found["note"].value == ""
    assert (found["key"].value, found["key"].is_set) == ("", True)
    assert found["address"].known_by == "hooks.example"
    assert not found["key"].removable


@pytest.mark.parametrize("name", KINDS)
def test_no_kind_of_channel_shows_its_secrets(name: str) -> None:
    kind = KINDS[name]
    values = dict.fromkeys(kind.secrets, "do not show")
    fields = fields_of(kind.config, "config", values=values, secrets=kind.secrets)
    assert {item.path.removeprefix("config.") for item in fields if item.is_secret} == kind.secrets
    assert "do not show" not in repr(fields)


def test_a_selector_is_a_form_too() -> None:
    controls = [item.control for item in fields_of(SELECTOR, "selector")]
    assert controls == ["lines", "pairs", "checks", "pairs"]
