"""The settings in the output of `paceline doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.platform.settings import Settings
from app.platform.settings.showing import ShownSetting, shown

KEY = "0" * 43 + "="
SET = {
    "PACELINE_DATABASE_URL": "postgresql://paceline:hidden@db/paceline",
    "PACELINE_BROKER_URL": "redis://:hidden@broker/0",
    "PACELINE_METRICS_TOKEN": "hidden",
    "PACELINE_BLOB_ACCESS_KEY_ID": "hidden",
    "PACELINE_BLOB_SECRET_ACCESS_KEY": "hidden",
    "PACELINE_LOG_JSON": "1",
    "PACELINE_BLOB_URL": "",
}


def test_settings_are_shown_with_their_origin_and_without_secrets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in SET.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "secret.key").write_text(KEY)
    monkeypatch.setenv("PACELINE_DATA_DIR", str(tmp_path))

    found = {setting.variable: setting for setting in shown(Settings())}

    assert found.keys() == {f"PACELINE_{name.upper()}" for name in Settings.model_fields}
    assert "hidden" not in str(found)
    assert KEY not in str(found)
    for setting in (
        ShownSetting(
            "PACELINE_DATABASE_URL", "postgresql://paceline:***@db/paceline", "environment"
        ),
        ShownSetting("PACELINE_BROKER_URL", "redis://:***@broker/0", "environment"),
        ShownSetting("PACELINE_METRICS_TOKEN", "set, not shown", "environment"),
        ShownSetting("PACELINE_LOG_JSON", "true", "environment"),
        ShownSetting("PACELINE_LEASE_S", "60", "default"),
        ShownSetting("PACELINE_BLOB_URL", "unset", "default"),
        ShownSetting("PACELINE_SECRET_KEYS", "set, not shown", f"file {tmp_path}/secret.key"),
    ):
        assert found[setting.variable] == setting


def test_keys_in_the_environment_are_not_shown_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_SECRET_KEYS", KEY)

    found = {setting.variable: setting for setting in shown(Settings())}

    assert found["PACELINE_SECRET_KEYS"] == ShownSetting(
        "PACELINE_SECRET_KEYS", "set, not shown", "environment"
    )
