"""Settings: refused values, the messages, and derived values."""

from __future__ import annotations

import base64
import os

import pytest
from pydantic import SecretStr

from app.errors import InvalidSettingsError
from app.platform.settings import Settings
from app.sessions.chunks.intake import SILENCE_S, silence

DAY_S = 24 * 3600.0
KEY = base64.urlsafe_b64encode(bytes(32)).decode()


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("PACELINE_"):
            monkeypatch.delenv(name)


def refused(monkeypatch: pytest.MonkeyPatch, **variables: str) -> list[str]:
    """Return the message with which an environment is refused."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidSettingsError) as caught:
        Settings()
    return [fault.message for fault in caught.value.faults]


@pytest.mark.parametrize("limit_s", [0.0, -1.0, DAY_S + 1, float("inf"), float("nan")])
def test_the_silence_that_seals_a_session_is_a_day_at_most(limit_s: float) -> None:
    with pytest.raises(InvalidSettingsError):
        Settings(session_silence_limit_s=limit_s)


def test_however_long_the_pauses_were_the_setting_seals() -> None:
    assert silence(0.0, DAY_S).total_seconds() == SILENCE_S
    assert silence(1e9, Settings().session_silence_limit_s).total_seconds() == DAY_S
    assert silence(1e9, Settings(session_silence_limit_s=60.0).session_silence_limit_s) == silence(
        0.0, 60.0
    )


@pytest.mark.parametrize(
    ("url", "over_tls"),
    [
        (None, False),
        ("http://paceline.example", False),
        ("https://paceline.example", True),
        ("HTTPS://paceline.example", True),
    ],
)
def test_people_come_over_tls_where_their_address_says_so(url: str | None, over_tls: bool) -> None:  # noqa: FBT001 - parametrized
    assert Settings(external_url=url).served_over_tls is over_tls


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PORT", "abc", "must be a whole number; it is 'abc'"),
        ("PORT", "70000", "must be at most 65535; it is '70000'"),
        ("LEASE_S", "nan", "must be a finite number; it is 'nan'"),
        ("LEASE_S", "0", "must be greater than 0; it is '0'"),
        ("LOG_JSON", "perhaps", "must be true or false; it is 'perhaps'"),
        (
            "LOG_LEVEL",
            "loud",
            "must be one of 'debug', 'info', 'warning', 'error' or 'critical'; it is 'loud'",
        ),
        ("MAX_BODY_BYTES", "0", "must be at least 1; it is '0'"),
        (
            "SECRET_KEYS",
            f"{KEY},short",
            (
                "must be 32 bytes in URL-safe base64 each, as "
                "`openssl rand -base64 32 | tr '+/' '-_'` prints"
            ),
        ),
        ("DATABASE_URL", "mysql://u:hidden@h/d", "must begin with postgresql+psycopg:// or "),
        ("EXTERNAL_URL", "paceline.example", "must be an address, as https://paceline.example"),
        ("OIDC_ISSUER", "ftp://x", "must be an address, as https://paceline.example"),
        ("ALLOWED_HOSTS", "a.example,https://b", "must be host names without scheme and port"),
        ("ALLOWED_HOSTS", "10.0.0.1:8765", "must be host names without scheme and port"),
        ("ALERT_ALLOWED_NETWORKS", "10.0.0.1/8", "must be networks, as 10.0.0.0/8"),
        ("OIDC_ROLES", "sre=king", "must be roles of groups, as sre=administrator"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    (line,) = refused(monkeypatch, **{f"PACELINE_{name}": value})

    assert line.startswith(f"PACELINE_{name} {said}")
    assert "\n" not in line
    assert "hidden" not in line
    assert "short" not in line


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {"LEASE_S": "16"},
            "PACELINE_LEASE_RENEW_S (20) must be at most half of PACELINE_LEASE_S (16)",
        ),
        (
            {"LEASE_S": "10", "LEASE_RENEW_S": "2.5"},
            "PACELINE_ALERT_ATTEMPT_LIMIT_S (15) must be less than PACELINE_LEASE_S (10)",
        ),
        (
            {"ALERT_REPEAT_INTERVAL_S": "60"},
            "PACELINE_ALERT_REPEAT_INTERVAL_S (60) must be at least PACELINE_ALERT_GROUP_INTERVAL",
        ),
        (
            {"INGEST_BUDGET_BYTES": "1000"},
            "PACELINE_MAX_BODY_BYTES (536870912) must be at most PACELINE_INGEST_BUDGET_BYTES",
        ),
        (
            {"MAX_DECOMPRESSED_BYTES": "1000"},
            "PACELINE_MAX_BODY_BYTES (536870912) must be at most PACELINE_MAX_DECOMPRESSED_BYTES",
        ),
        ({"OIDC_ISSUER": "https://login.example"}, "PACELINE_OIDC_CLIENT_ID is missing"),
        ({"OIDC_CLIENT_ID": "paceline"}, "PACELINE_OIDC_ISSUER is missing"),
        (
            {"BLOB_ACCESS_KEY_ID": "me"},
            "PACELINE_BLOB_ACCESS_KEY_ID and PACELINE_BLOB_SECRET_ACCESS_KEY must be set together",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    (line,) = refused(
        monkeypatch, **{f"PACELINE_{name}": value for name, value in variables.items()}
    )

    assert line.startswith(said)


def test_all_faults_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said = refused(monkeypatch, PACELINE_PORT="x", PACELINE_LOG_LEVEL="y", PACELINE_MAX_ROW="3")

    assert [line.split()[0] for line in said] == [
        "PACELINE_MAX_ROW",
        "PACELINE_PORT",
        "PACELINE_LOG_LEVEL",
    ]


@pytest.mark.parametrize("name", ["DATABASE_URL", "BROKER_URL", "DATA_DIR"])
def test_settings_that_identify_the_installation_may_not_be_empty(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert refused(monkeypatch, **{f"PACELINE_{name}": ""}) == [
        f"PACELINE_{name} is empty: unset it for the default, or say which is meant"
    ]


def test_every_other_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    default = Settings()
    for name in Settings.model_fields:
        if name not in ("database_url", "broker_url", "data_dir"):
            monkeypatch.setenv(f"PACELINE_{name.upper()}", "")

    assert Settings().model_copy(update={"instance_name": default.instance_name}) == default


def test_levels_of_logs_are_read_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_LOG_LEVEL", "WARNING")

    assert Settings().log_level == "warning"


@pytest.mark.parametrize(
    "url", ["redis://h:6379/0", "rediss://h/1", "amqp://h", "paceline-files://localhost/"]
)
def test_every_address_of_a_broker_is_taken(url: str) -> None:
    assert Settings(broker_url=url).broker_url == url


def test_a_child_process_reads_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(
        secret_keys=(KEY,),
        metrics_token=SecretStr("token"),
        lease_s=59.5,
        log_json=True,
        allowed_hosts=("a.example", "::1"),
    )
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)

    assert Settings() == settings
