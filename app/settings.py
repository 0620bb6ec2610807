"""The configuration: one frozen object, the only reader of the environment."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

MIB = 1024 * 1024


def default_data_dir() -> Path:
    """Return where embedded data lives: /var/lib for root, the XDG data home for others."""
    if os.geteuid() == 0:
        return Path("/var/lib/paceline/data")
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "paceline"


class Settings(BaseSettings):
    """Every setting, read from ``PACELINE_*``."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_", frozen=True, extra="ignore")

    # Unset: the embedded database and broker in `data_dir`.
    database_url: str | None = None
    broker_url: str | None = None
    data_dir: Path = Field(default_factory=default_data_dir)

    host: str = "127.0.0.1"
    port: int = 8765
    # There are no tokens yet, so listening beyond loopback must be asked for in words.
    allow_unauthenticated_network: bool = False
    # Host header names answered besides loopback ones (comma separated).
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()

    log_json: bool = False
    log_level: str = "info"

    max_body_bytes: int = 512 * MIB
    max_decompressed_bytes: int = 4096 * MIB
    max_rows: int = 40_000_000
    # Bodies spooled at once over all requests; above it the answer is 429.
    ingest_budget_bytes: int = 2048 * MIB
    ingest_concurrency: int = 4
    ingest_queue: int = 64
    ingest_idle_timeout_s: float = 30.0

    lease_s: float = 60.0
    lease_renew_s: float = 20.0
    max_attempts: int = 3
    sweep_interval_s: float = 5.0
    # A queued row this old is published again: its message may be lost.
    republish_after_s: float = 15.0
    analysis_time_limit_s: int = 900
    analysis_memory_limit_kib: int = 8 * 1024 * 1024
    heartbeat_interval_s: float = 5.0

    # Where people reach the dashboard: the links in alerts. Unset: host and port of this server.
    external_url: str | None = None
    # Keys that encrypt the secrets of channels (comma separated, the newest first: each decrypts);
    # unset: those in the file, one a line. Every process of an installation needs the same.
    secret_keys: Annotated[tuple[str, ...], NoDecode] = Field(default=(), repr=False)
    # Unset: `secret.key` in `data_dir`, made when the first channel is added.
    secret_key_file: Path | None = None
    # Networks that are not on the public internet and may be sent to all the same (comma
    # separated): 10.0.0.0/8, 127.0.0.1/32…
    alert_allowed_networks: Annotated[tuple[str, ...], NoDecode] = ()
    # Allow channels of the kind `apprise`, which nothing keeps from private addresses.
    alert_apprise: bool = False
    # One attempt, from the look-up of the name to the last byte of the answer; below `lease_s`.
    alert_attempt_limit_s: float = 15.0
    alert_group_wait_s: float = 30.0
    alert_group_interval_s: float = 300.0
    alert_repeat_interval_s: float = 4 * 3600.0

    @field_validator("allowed_hosts", "secret_keys", "alert_allowed_networks", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """Take a list as the environment writes it: separated by commas."""
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(",") if name.strip())
        return value

    @field_validator("alert_allowed_networks")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse a network that cannot be read when the program starts, not when it sends."""
        for network in value:
            ipaddress.ip_network(network)
        return value

    def environment(self) -> dict[str, str]:
        """Return the variables from which a child process reads these settings."""
        return {
            f"PACELINE_{name.upper()}": ",".join(value) if isinstance(value, tuple) else str(value)
            for name, value in self
            if value is not None
        }
