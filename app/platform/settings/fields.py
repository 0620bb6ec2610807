"""The settings: a frozen object with a field for each setting, and rules between settings."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, ModelWrapValidatorHandler, SecretStr, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from app.errors import Fault, InvalidSettingsError
from app.platform.settings.kinds import (
    Count,
    GroupRoles,
    HostNames,
    LogLevel,
    Networks,
    NotEmpty,
    PostgresUrl,
    Seconds,
    SecondsOrNone,
    SecretKeys,
    WebAddress,
    default_data_dir,
    unknown,
    variable,
    variables,
)
from app.platform.validation import predicate

MIB = 1024 * 1024

# Settings whose values are never shown.
SECRET: Final = frozenset(
    {
        "metrics_token",
        "oidc_client_secret",
        "blob_access_key_id",
        "blob_secret_access_key",
        "secret_keys",
    }
)


class _Environment(EnvSettingsSource):
    """Source of settings: the non-empty variables of the environment.

    An empty variable counts as unset, since Compose passes missing variables as empty ones. An
    empty value is refused where the default would be another installation with other data.
    """

    def _load_env_vars(self) -> Mapping[str, str | None]:
        given = variables()
        return {
            variable(name).lower(): given[name]
            for name, field in self.settings_cls.model_fields.items()
            if given.get(name) or (name in given and NotEmpty in field.metadata)
        }


class Settings(BaseSettings):
    """All settings, read from the variables ``PACELINE_*``."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_", frozen=True, extra="ignore")

    # Address of the database. Unset: the embedded database and the broker of files in `data_dir`.
    database_url: Annotated[PostgresUrl | None, NotEmpty] = None
    broker_url: Annotated[str | None, NotEmpty] = None
    data_dir: Annotated[Path, NotEmpty] = Field(default_factory=default_data_dir)

    # Name of this process in `/healthz`; unset: a new random name at every start.
    instance_name: str = Field(default_factory=lambda: uuid.uuid4().hex[:12])
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65_535)
    # Require sign-in. Sign-in is always required if other machines can reach the server.
    require_sign_in: bool = False
    # File with the first administrator's token: `paceline migrate` reads the token, or writes a new
    # one.
    admin_token_file: Path | None = None
    # Token with which Prometheus reads /metrics; unset: a token with the right to read all
    # projects.
    metrics_token: SecretStr | None = None
    # OpenID Connect provider for sign-in; unset: only passwords of this server.
    oidc_issuer: WebAddress | None = None
    oidc_client_id: str = ""
    oidc_client_secret: SecretStr | None = None
    # Scopes that the server requests, and the claim that lists a person's groups.
    oidc_scopes: str = "openid profile email"
    oidc_groups_claim: str = "groups"
    # Roles of groups (comma separated): `sre=administrator`, `team=operator@project`; the group `*`
    # is every person whom the provider lets in.
    oidc_roles: GroupRoles = ()
    # Host header names that the server answers (comma separated). Unset: any name if sign-in is
    # required, else loopback names only.
    allowed_hosts: HostNames = ()

    # S3 bucket of large blobs: `s3://bucket/prefix`; unset: the database holds all blobs.
    blob_url: str | None = None
    # Unset: the common variables AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID….
    blob_endpoint: str | None = None
    blob_region: str | None = None
    blob_access_key_id: str | None = None
    blob_secret_access_key: SecretStr | None = None
    # Smaller blobs are stored in the database: a request to the store would take longer than the
    # transfer of their bytes.
    blob_min_bytes: int = Field(default=1 * MIB, ge=0)
    # Hours for which an object without a referring row is kept. At least the age of the oldest
    # backup whose restore should find all its objects.
    blob_unreferenced_h: float = Field(default=24.0, ge=24.0, allow_inf_nan=False)

    log_json: bool = False
    log_level: LogLevel = "info"

    # Largest number of simultaneous connections from one address, or from one IPv6 network of 64
    # bits.
    max_connections_per_peer: Count = 2048
    # Time limit for the head of a request, and for the unread rest of a body after the answer.
    header_timeout_s: Seconds = 10.0
    # Time limit for a peer that reads nothing of its answer.
    unread_timeout_s: Seconds = 60.0
    # Least average rate of a body after the first `ingest_idle_timeout_s`, on every route.
    min_body_bytes_per_s: float = Field(default=1024.0, ge=0, allow_inf_nan=False)

    # Quotas of each project; unset: no limit.
    quota_sessions_per_hour: int | None = Field(default=10_000, ge=0)
    quota_bytes: int | None = Field(default=None, ge=0)
    quota_operations: int | None = Field(default=None, ge=0)
    quota_open_sessions: int | None = Field(default=1000, ge=0)
    quota_producers: int | None = Field(default=65_536, ge=0)
    quota_jobs: int | None = Field(default=10_000, ge=0)
    quota_attempts: int | None = Field(default=100_000, ge=0)
    quota_tensor_groups: int | None = Field(default=10_000, ge=0)
    quota_probed_devices: int | None = Field(default=200_000, ge=0)
    quota_notes_per_hour: int | None = Field(default=600, ge=0)

    max_body_bytes: Count = 512 * MIB
    max_decompressed_bytes: Count = 4096 * MIB
    max_rows: Count = 40_000_000
    # Limit of the spooled bodies of all requests together; above it the answer is 429.
    ingest_budget_bytes: Count = 2048 * MIB
    ingest_concurrency: Count = 4
    ingest_queue: Count = 4096
    ingest_idle_timeout_s: Seconds = 30.0
    # Limits of the bodies that wait for workers: their bytes and their age; above either the answer
    # is 429.
    inbox_bytes: Count = 4096 * MIB
    inbox_age_s: Seconds = 900.0
    # Memory for decoding a batch of bodies; a single chunk that needs more is refused.
    inbox_memory_limit_kib: Count = 2 * 1024 * 1024

    # Interval of the pulse bodies of a host, unless its job sets another one.
    pulse_interval_s: Annotated[float, Field(ge=0.1, le=60)] = 5.0
    # A job counts as hung if no step has ended for this time or for five usual steps, whichever is
    # longer, plus one pulse interval.
    hang_after_s: Seconds = 25.0
    # Recordings that notices of the pulse request: steps of a session (clients record at most
    # 10,000), largest share of a job's steps after the first recording, and least interval.
    # Recordings that people request are not counted.
    pulse_record_steps: int = Field(default=50, ge=1, le=10_000)
    pulse_record_share: float = Field(default=0.02, gt=0, le=1)
    pulse_record_interval_s: SecondsOrNone = 3600.0
    # A requested session that does not arrive is requested again after its steps plus this time.
    pulse_record_again_s: Seconds = 60.0
    # A notice whose session does not arrive fires this time after the session's steps should have
    # been recorded.
    pulse_confirm_wait_s: Seconds = 300.0

    # Time without a chunk after which a session is sealed, whatever the earlier pauses between its
    # chunks.
    session_silence_limit_s: float = Field(default=24 * 3600.0, gt=0, le=24 * 3600.0)

    lease_s: Seconds = 60.0
    lease_renew_s: Seconds = 20.0
    max_attempts: Count = 3
    sweep_interval_s: Seconds = 5.0
    # Age from which a queued row is published again, because its message may be lost.
    republish_after_s: Seconds = 15.0
    analysis_time_limit_s: Count = 900
    analysis_memory_limit_kib: Count = 8 * 1024 * 1024
    heartbeat_interval_s: Seconds = 5.0

    # Address of the dashboard in the links of alerts. Unset: host and port of this server.
    external_url: WebAddress | None = None
    # Period for which browsers use only TLS after an answer (Strict-Transport-Security), if the
    # external address is https; 0 revokes it.
    hsts_max_age_s: int = Field(default=365 * 24 * 3600, ge=0)
    # Keys that encrypt the secrets of channels (comma separated, the newest first; each of them
    # decrypts); unset: the keys in the file, one a line. All processes of an installation need the
    # same keys.
    secret_keys: SecretKeys = Field(default=(), repr=False)
    # Unset: `secret.key` in `data_dir`, created with the first channel.
    secret_key_file: Path | None = None
    # Private networks to which alerts may be sent (comma separated): 10.0.0.0/8, 127.0.0.1/32…
    alert_allowed_networks: Networks = ()
    # Allow channels of the kind `apprise`, which can send to private addresses without a check.
    alert_apprise: bool = False
    # Time limit of one attempt, from the look-up of the name to the last byte of the answer; less
    # than `lease_s`.
    alert_attempt_limit_s: Seconds = 15.0
    alert_group_wait_s: SecondsOrNone = 30.0
    alert_group_interval_s: SecondsOrNone = 300.0
    alert_repeat_interval_s: Seconds = 4 * 3600.0
    # Messages a minute that a channel receives singly; further ones are joined in a digest. 0: no
    # digests.
    alert_digest_above: int = Field(default=3, ge=0)

    # The kill switch for all projects: the server takes no action on machines.
    actions_off: bool = False
    # Path of Slurm's scontrol, which workers run as their own user; unset: policies cannot use
    # Slurm.
    slurm_scontrol: Path | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _in_our_words(cls, values: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Raise one error with all faults of the settings, named by their variables.

        Raises
        ------
        InvalidSettingsError
        """
        faults = list(unknown(cls.model_fields))
        settings: Self | None = None
        try:
            settings = handler(values)
        except ValidationError as error:
            faults += [_fault(item) for item in error.errors(include_url=False)]
        else:
            faults += _contradictions(settings)
        if faults or settings is None:
            raise InvalidSettingsError(
                "The settings cannot be used.",
                faults=tuple(Fault(InvalidSettingsError.code, said) for said in faults),
            )
        return settings

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - ours stands for it
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - there is none
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - there is none
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Ignore empty variables of the environment."""
        return init_settings, _Environment(settings_cls)

    @property
    def served_over_tls(self) -> bool:
        """Return whether people reach the dashboard over TLS, which a proxy terminates."""
        return (self.external_url or "").lower().startswith("https:")

    @property
    def key_file(self) -> Path:
        """Return the file of the keys that encrypt channels' secrets."""
        return self.secret_key_file or self.data_dir / "secret.key"

    def environment(self) -> dict[str, str]:
        """Return the variables that describe these settings to a child process."""
        return {variable(name): as_text(value) for name, value in self if value is not None}

    def environment_of_child(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a child process, with exactly these settings.

        Parameters
        ----------
        environment : mapping of str to str
            Current environment, whose settings may differ from these.
        """
        ours = {variable(name) for name in type(self).model_fields}
        rest = {name: value for name, value in environment.items() if name.upper() not in ours}
        return rest | self.environment()


def _fault(item: ErrorDetails) -> str:
    """Return the fault of a setting, named by its variable."""
    name = str(item["loc"][0])
    said, value = predicate(item), item["input"]
    # Messages of our own validators contain the value if that helps; a missing setting has no
    # value.
    shown = item["type"] != "value_error" and name not in SECRET and isinstance(value, str | int)
    return f"{variable(name)} {said}" + (f"; it is {str(value)!r}" if shown else "")


def as_text(value: object) -> str:
    """Return a setting's value in the environment's notation."""
    match value:
        case tuple():
            return ",".join(value)
        case SecretStr():
            return value.get_secret_value()
        case bool():
            return str(value).lower()
        case float():
            return str(value).removesuffix(".0")
        case _:
            return str(value)


# Conditions between settings, and the message if a condition fails: a name in braces becomes the
# variable and its value.
RULES: Final[tuple[tuple[Callable[[Settings], bool], str], ...]] = (
    (
        lambda settings: settings.lease_renew_s <= settings.lease_s / 2,
        (
            "{lease_renew_s} must be at most half of {lease_s}: workers would lose "
            "the work that they are doing"
        ),
    ),
    (
        lambda settings: settings.alert_attempt_limit_s < settings.lease_s,
        ("{alert_attempt_limit_s} must be less than {lease_s}: messages would be sent twice"),
    ),
    (
        lambda settings: settings.alert_group_interval_s <= settings.alert_repeat_interval_s,
        (
            "{alert_repeat_interval_s} must be at least {alert_group_interval_s}: no "
            "two messages are closer together than that"
        ),
    ),
    (
        lambda settings: settings.max_body_bytes <= settings.ingest_budget_bytes,
        (
            "{max_body_bytes} must be at most {ingest_budget_bytes}: the largest "
            "body would be refused each time"
        ),
    ),
    (
        lambda settings: settings.max_body_bytes <= settings.max_decompressed_bytes,
        (
            "{max_body_bytes} must be at most {max_decompressed_bytes}: a body that "
            "is not compressed is as large decompressed"
        ),
    ),
    (
        lambda settings: settings.oidc_issuer is None or bool(settings.oidc_client_id),
        "PACELINE_OIDC_CLIENT_ID is missing: PACELINE_OIDC_ISSUER needs it",
    ),
    (
        lambda settings: (
            settings.oidc_issuer is not None
            or not (settings.oidc_client_id or settings.oidc_client_secret or settings.oidc_roles)
        ),
        "PACELINE_OIDC_ISSUER is missing: without it the other PACELINE_OIDC_… have no effect",
    ),
    (
        lambda settings: (
            (settings.blob_access_key_id is None) == (settings.blob_secret_access_key is None)
        ),
        "PACELINE_BLOB_ACCESS_KEY_ID and PACELINE_BLOB_SECRET_ACCESS_KEY must be set together",
    ),
)


def _contradictions(settings: Settings) -> Iterator[str]:
    names = {name: f"{variable(name)} ({as_text(value)})" for name, value in settings}
    for holds, said in RULES:
        if not holds(settings):
            yield said.format_map(names)
