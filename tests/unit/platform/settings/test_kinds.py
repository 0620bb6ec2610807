"""Variables with our prefix: settings, other known ones, and refused ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.errors import InvalidSettingsError
from app.platform.settings import Settings
from app.platform.settings.kinds import Caller, unknown, variables

ROOT = Path(__file__).parents[4]
# Former settings, which the changelog mentions.
GONE = {"PACELINE_ALLOW_UNAUTHENTICATED_NETWORK"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("PACELINE_MAX_BODY_BYTE", ": did you mean PACELINE_MAX_BODY_BYTES?"),
        ("PACELINE_DATABSE_URL", ": did you mean PACELINE_DATABASE_URL?"),
        ("paceline_database_ur", ": did you mean PACELINE_DATABASE_URL?"),
        ("PACELINE_XYZZY", ""),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.setenv(name, "secret")

    with pytest.raises(InvalidSettingsError) as caught:
        Settings()

    assert [fault.message for fault in caught.value.faults] == [
        f"{name.upper()} is not a setting{said}"
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PACELINE_PORT", "tcp://10.0.0.1:80"),
        ("PACELINE_SERVICE_HOST", "10.0.0.1"),
        ("PACELINE_SERVICE_PORT", "80"),
        ("PACELINE_SERVICE_PORT_HTTP", "80"),
        ("PACELINE_PORT_80_TCP", "tcp://10.0.0.1:80"),
        ("PACELINE_PORT_80_TCP_PROTO", "tcp"),
        ("PACELINE_PORT_80_TCP_PORT", "80"),
        ("PACELINE_PORT_80_TCP_ADDR", "10.0.0.1"),
        # Variables of Kubernetes Services called paceline-postgres and paceline-host.
        ("PACELINE_POSTGRES_PORT", "tcp://10.0.0.2:5432"),
        ("PACELINE_POSTGRES_SERVICE_HOST", "10.0.0.2"),
        ("PACELINE_POSTGRES_PORT_5432_TCP_ADDR", "10.0.0.2"),
        ("PACELINE_HOST_PORT", "udp://10.0.0.3:1"),
    ],
)
def test_what_kubernetes_sets_for_services_counts_as_unset(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.delenv("PACELINE_PORT", raising=False)
    monkeypatch.setenv(name, value)

    assert Settings().port == 8765


def test_a_port_that_is_a_number_is_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_PORT", "9000")

    assert Settings().port == 9000


def test_the_repository_names_no_variable_that_would_be_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = set()
    for folder in ("app", "benchmarks", "client", "docs", "examples", "scripts", "workers"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".md", ".yaml", ".html", ".js", ".sh"}:
                named |= set(re.findall(r"\bPACELINE_[A-Z0-9_]*[A-Z0-9]\b", path.read_text()))
    for file in ("README.md", "CONTRIBUTING.md", "Makefile", "docker-compose.yml", ".env.example"):
        named |= set(re.findall(r"\bPACELINE_[A-Z0-9_]*[A-Z0-9]\b", (ROOT / file).read_text()))
    families = {"PACELINE_BLOB", "PACELINE_QUOTA", "PACELINE_OIDC"}
    for name in named - families - GONE:
        monkeypatch.setenv(name, "x")

    assert {"database_url", "spool", "token", "reference_data"} <= set(variables())
    assert list(unknown(Settings.model_fields)) == []


def test_who_asks_is_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_TOKEN", "secret")
    monkeypatch.setenv("PACELINE_PROJECT", "")

    assert Caller.of_environment() == Caller("secret", None)


@pytest.mark.parametrize("value", ["a\r\nX: 1", "a\x1fb", "\N{SNOWMAN}"])
@pytest.mark.parametrize("name", ["PACELINE_TOKEN", "PACELINE_PROJECT"])
def test_a_token_that_cannot_be_in_a_header_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("PACELINE_TOKEN", "secret\n")
    assert Caller.of_environment() == Caller("secret", None)
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidSettingsError, match=name):
        Caller.of_environment()
