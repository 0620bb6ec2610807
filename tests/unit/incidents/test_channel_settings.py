"""Configurations of all kinds of channels and actions: where their secrets are sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import pytest
import trustme

from app.actions.kinds.registry import KINDS as ACTIONS
from app.errors import InvalidChannelError
from app.incidents.channel_settings import Configured, changed_config
from app.incidents.channels.registry import KINDS as CHANNELS
from app.web.forms import fields_of, label_of

KINDS: Final[Mapping[str, Configured]] = {**CHANNELS, **ACTIONS}
SIGNING: Final = ["whsec_" + "QUJD" * 10]
PEM: Final = [trustme.CA().cert_pem.bytes().decode() for _ in range(2)]
# Of each kind, two configurations that differ in every field.
EXAMPLES: Final[Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]] = {
    "webhook": (
        {"url": "https://a.example", "signing_secrets": SIGNING},
        {"url": "https://b.example", "signing_secrets": SIGNING * 2},
    ),
    "slack": (
        {"url": "https://a.example", "signing_secret": "1", "operators": ["U012AB3CD"]},
        {"url": "https://b.example", "signing_secret": "2", "operators": ["U012AB3CE"]},
    ),
    "discord": ({"url": "https://a.example"}, {"url": "https://b.example"}),
    "teams": ({"url": "https://a.example"}, {"url": "https://b.example"}),
    "feishu": (
        {"url": "https://a.example", "signing_secret": "1"},
        {"url": "https://b.example", "signing_secret": "2"},
    ),
    "pagerduty": (
        {"url": "https://a.example", "routing_key": "1"},
        {"url": "https://b.example", "routing_key": "2"},
    ),
    "alertmanager": (
        {"url": "https://a.example", "authorization": "Bearer 1"},
        {"url": "https://b.example", "authorization": "Bearer 2"},
    ),
    "email": (
        {
            "host": "a.example",
            "port": 587,
            "security": "starttls",
            "sender": "a@a.example",
            "recipients": ["b@a.example"],
            "username": "a",
            "password": "1",
        },
        {
            "host": "b.example",
            "port": 465,
            "security": "tls",
            "sender": "c@a.example",
            "recipients": ["d@a.example"],
            "username": "b",
            "password": "2",
        },
    ),
    "apprise": ({"urls": ["json://a.example"]}, {"urls": ["json://b.example"]}),
    "event": (
        {"url": "https://a.example", "signing_secrets": SIGNING},
        {"url": "https://b.example", "signing_secrets": SIGNING * 2},
    ),
    "kubernetes": (
        {
            "server": "https://a.example",
            "token": "1",
            "ca_certificate": PEM[0],
            "cordon": False,
            "namespaces": ["a"],
        },
        {
            "server": "https://b.example",
            "token": "2",
            "ca_certificate": PEM[1],
            "cordon": True,
            "namespaces": ["b"],
        },
    ),
    "slurm": ({"accounts": ["a"], "users": ["a"]}, {"accounts": ["b"], "users": ["b"]}),
}
FIELDS: Final = [(kind, name) for kind, (config, _) in EXAMPLES.items() for name in config]
# Public fields that decide neither the host that gets a secret nor how the connection is secured.
HARMLESS: Final = {
    ("slack", "operators"),
    ("email", "sender"),
    ("email", "recipients"),
    ("email", "username"),
    ("kubernetes", "cordon"),
    ("kubernetes", "namespaces"),
}
ADDRESS: Final = re.compile("ur[il]|host|server|port|proxy|tls|ssl|secur|verif|cert|relay")


def stored(kind: str) -> dict[str, Any]:
    """Return the first example as it is stored."""
    public, secrets = changed_config(KINDS[kind], {}, EXAMPLES[kind][0], InvalidChannelError)
    return {**public, **secrets}


def test_every_kind_and_every_field_has_an_example() -> None:
    fields = {
        (name, field.path.removeprefix("config."))
        for name, kind in KINDS.items()
        for field in fields_of(kind.config, "config")
    }
    assert set(FIELDS) == fields
    for first, second in EXAMPLES.values():
        assert all(second[name] != value for name, value in first.items())


def test_only_harmless_fields_keep_secrets() -> None:
    kept = {(name, field) for name, kind in KINDS.items() for field in kind.keep_secrets}
    assert kept == HARMLESS
    assert [field for _, field in kept if ADDRESS.search(field)] == []


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_secret_that_would_go_elsewhere_is_asked_for_again(kind: str, field: str) -> None:
    before, after = stored(kind), EXAMPLES[kind][1][field]
    secrets = KINDS[kind].secrets
    # A stored URL is a destination, even where it is itself secret.
    moves = (kind, field) not in HARMLESS if field not in secrets else field == "url"
    changes = {field: after}
    if moves and secrets - {field}:
        with pytest.raises(InvalidChannelError) as refused:
            changed_config(KINDS[kind], before, changes, InvalidChannelError)
        faults = {(fault.code, fault.column) for fault in refused.value.faults}
        assert faults == {("secret_needed_again", f"config.{name}") for name in secrets - {field}}
        assert f"because {label_of(field)} changed" in refused.value.faults[0].message
        changes |= {name: EXAMPLES[kind][0][name] for name in secrets - {field}}
    public, new_secrets = changed_config(KINDS[kind], before, changes, InvalidChannelError)
    shown = public | new_secrets
    assert shown.get(field, after) == after
    # The same value is no change.
    changed_config(KINDS[kind], shown, {field: shown[field]}, InvalidChannelError)


@pytest.mark.parametrize("field", ["port", "security"])
def test_a_field_that_returns_to_its_default_is_changed(field: str) -> None:
    before = {**stored("email"), **EXAMPLES["email"][1]}
    with pytest.raises(InvalidChannelError, match="not valid") as refused:
        changed_config(KINDS["email"], before, {field: None}, InvalidChannelError)
    assert [fault.column for fault in refused.value.faults] == ["config.password"]
    changed_config(KINDS["email"], before, {field: None, "password": None}, InvalidChannelError)


def test_a_field_that_was_added_since_is_not_changed() -> None:
    before = {name: value for name, value in stored("email").items() if name != "port"}
    public, secrets = changed_config(KINDS["email"], before, {"username": "c"}, InvalidChannelError)
    assert (public["username"], public["port"], secrets) == ("c", 587, {"password": "1"})


# A certificate has several lines.
TEXTS: Final = [
    (kind, name)
    for kind, name in FIELDS
    if isinstance(EXAMPLES[kind][0][name], str | list) and name != "ca_certificate"
]


@pytest.mark.parametrize("character", ["\r\nX-Header: 1", "\n", "\x00", "\x1f", "\x7f", "\x85"])
@pytest.mark.parametrize(("kind", "field"), TEXTS)
def test_no_text_has_a_control_character(kind: str, field: str, character: str) -> None:
    value = EXAMPLES[kind][0][field]
    wrong = value + character if isinstance(value, str) else [value[0] + character]
    config = {**EXAMPLES[kind][0], field: wrong}
    with pytest.raises(InvalidChannelError, match="not valid") as refused:
        changed_config(KINDS[kind], {}, config, InvalidChannelError)
    assert all((fault.column or "").startswith("config") for fault in refused.value.faults)


@pytest.mark.parametrize(
    ("kind", "field"), [("kubernetes", "token"), ("alertmanager", "authorization")]
)
@pytest.mark.parametrize("value", ["Bearer \N{LATIN SMALL LETTER E WITH ACUTE}", " a", "a ", ""])
def test_a_header_is_printable_ascii(kind: str, field: str, value: str) -> None:
    with pytest.raises(InvalidChannelError) as refused:
        changed_config(KINDS[kind], {}, {**EXAMPLES[kind][0], field: value}, InvalidChannelError)
    assert [fault.column for fault in refused.value.faults] == [f"config.{field}"]
