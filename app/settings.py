"""The configuration: one frozen object, the only reader of the environment."""

from __future__ import annotations

import ipaddress
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.access.roles import GroupRole

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    # What `/healthz` calls this process; unset: another name at every start.
    instance_name: str = Field(default_factory=lambda: uuid.uuid4().hex[:12])
    host: str = "127.0.0.1"
    port: int = 8765
    # Ask everybody who they are. Always so where others than this machine's can reach the server.
    require_sign_in: bool = False
    # Holds the first administrator's token, or gets it: `paceline migrate` reads or writes it.
    admin_token_file: Path | None = None
    # What Prometheus shows to read /metrics; unset: a token that may read in all projects.
    metrics_token: SecretStr | None = None
    # People sign in here, by OpenID Connect; unset: with passwords of our own alone.
    oidc_issuer: str | None = None
    oidc_client_id: str = ""
    oidc_client_secret: SecretStr | None = None
    # What is asked for, and the claim that lists the groups of who signs in.
    oidc_scopes: str = "openid profile email"
    oidc_groups_claim: str = "groups"
    # Roles of groups (comma separated): `sre=administrator`, `team=operator@project`; `*` is
    # everybody whom the provider lets in.
    oidc_roles: Annotated[tuple[str, ...], NoDecode] = ()
    # Host header names answered (comma separated). Unset: loopback ones, without sign-in.
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()

    # Large blobs go to a bucket that speaks S3: `s3://bucket/prefix`; unset: to the database.
    blob_url: str | None = None
    # Unset: what other programs take from AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID….
    blob_endpoint: str | None = None
    blob_region: str | None = None
    blob_access_key_id: str | None = None
    blob_secret_access_key: SecretStr | None = None
    # Smaller ones are in the database all the same: a request would take longer than their bytes.
    blob_min_bytes: int = Field(default=1 * MIB, ge=0)
    # For how long an object has to be there, and without anything that refers to it, before it
    # goes: as old as the oldest backup that should find all its bytes.
    blob_unreferenced_h: float = Field(default=24.0, ge=24.0)

    log_json: bool = False
    log_level: str = "info"

    # Connections of one address, or of one IPv6 network of 64 bits, at the same time.
    max_connections_per_peer: int = 2048
    # For the head of a request; and after an answer for the rest of a body that was not read.
    header_timeout_s: float = 10.0
    # For how long a peer may read nothing of an answer.
    unread_timeout_s: float = 60.0
    # What a body brings on average, after the first `ingest_idle_timeout_s`; on every route.
    min_body_bytes_per_s: float = 1024.0

    # Quotas of each project; unset: no limit.
    quota_sessions_per_hour: int | None = Field(default=10_000, ge=0)
    quota_bytes: int | None = Field(default=None, ge=0)
    quota_operations: int | None = Field(default=None, ge=0)
    quota_open_sessions: int | None = Field(default=1000, ge=0)
    quota_producers: int | None = Field(default=65_536, ge=0)
    quota_jobs: int | None = Field(default=10_000, ge=0)
    quota_attempts: int | None = Field(default=100_000, ge=0)
    quota_tensor_groups: int | None = Field(default=10_000, ge=0)

    max_body_bytes: int = 512 * MIB
    max_decompressed_bytes: int = 4096 * MIB
    max_rows: int = 40_000_000
    # Bodies spooled at once over all requests; above it the answer is 429.
    ingest_budget_bytes: int = 2048 * MIB
    ingest_concurrency: int = 4
    ingest_queue: int = 64
    ingest_idle_timeout_s: float = 30.0

    # However long the pauses between its chunks were: silence of so long ends a session.
    session_silence_limit_s: float = Field(default=24 * 3600.0, gt=0, le=24 * 3600.0)

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
    # For how long browsers come over TLS alone after an answer, where that address is https; 0 ends
    # it.
    hsts_max_age_s: int = Field(default=365 * 24 * 3600, ge=0)
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
    # Messages a minute that reach a channel one by one, the rest as a digest; 0: all of them.
    alert_digest_above: Annotated[int, Field(ge=0)] = 3

    @field_validator(
        "allowed_hosts", "secret_keys", "alert_allowed_networks", "oidc_roles", mode="before"
    )
    @classmethod
    def _split(cls, value: object) -> object:
        """Take a list as the environment writes it: separated by commas."""
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(",") if name.strip())
        return value

    @field_validator(
        "blob_url",
        "blob_endpoint",
        "blob_region",
        "blob_access_key_id",
        "blob_secret_access_key",
        mode="before",
    )
    @classmethod
    def _is_set(cls, value: object) -> object:
        """Take an empty variable, which is what Compose makes of a missing one, for none."""
        return None if value == "" else value

    @field_validator("alert_allowed_networks")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse a network that cannot be read when the program starts, not when it sends."""
        for network in value:
            ipaddress.ip_network(network)
        return value

    @field_validator("oidc_roles")
    @classmethod
    def _are_roles(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse a role that cannot be read when the program starts, not when a user signs in."""
        for text in value:
            GroupRole.parse(text)
        return value

    @property
    def served_over_tls(self) -> bool:
        """Whether people reach the dashboard over TLS, which a proxy ends."""
        return (self.external_url or "").lower().startswith("https:")

    def environment(self) -> dict[str, str]:
        """Return the variables from which a child process reads these settings."""
        return {
            f"PACELINE_{name.upper()}": _as_text(value) for name, value in self if value is not None
        }

    def environment_of_child(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a child process that reads these settings and no others.

        Parameters
        ----------
        environment : mapping of str to str
            The present one, whose settings may differ from these.
        """
        ours = {f"PACELINE_{name.upper()}" for name in type(self).model_fields}
        rest = {name: value for name, value in environment.items() if name.upper() not in ours}
        return rest | self.environment()


def _as_text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
