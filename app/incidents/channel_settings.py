"""Channel configurations: validation, test messages, and deliveries that did not arrive."""

from __future__ import annotations

import itertools
import unicodedata
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import and_, exists, func, or_
from sqlalchemy.orm import aliased

from app.access.audit import Action, record
from app.access.projects import project_name
from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.report.session_verdict import Slowdown, SuspectedCause, VerdictFix, VerdictWorker
from app.errors import Fault, PacelineError
from app.incidents.channel_reads import no_channel
from app.incidents.deliver import attempt, base_url, guard, target_of
from app.incidents.delivery_reads import DELIVERIES, DeliveryRow
from app.incidents.grouping import Status
from app.incidents.lifecycle import fingerprint_of
from app.incidents.message import Alert, Message
from app.incidents.models.facts import Facts
from app.incidents.models.tables import AlertChannel, AlertDelivery, DeliveryState
from app.incidents.store import timing
from app.platform.container import Container
from app.platform.database.projects import DEFAULT_PROJECT
from app.platform.database.unit_of_work import Reads
from app.platform.outbound import DeliveryError, ReceiverAnswer
from app.platform.settings import Settings
from app.platform.validation import field_faults
from app.web.forms import fields_of, label_of

PORTS: Final = {"http": 80, "https": 443}
# Time limit in seconds of a DNS lookup while a user waits.
LOOK_UP_S: Final = 3.0


class Configured(Protocol):
    """A kind of channel or of action."""

    @property
    def config(self) -> TypeAdapter[Any]:
        """Type of the configuration."""

    @property
    def secrets(self) -> frozenset[str]:
        """Names of its secret fields."""

    @property
    def keep_secrets(self) -> frozenset[str]:
        """Names of public fields that change neither where nor how securely secrets are sent."""


def changed_config(
    kind: Configured,
    stored: Mapping[str, Any],
    changes: Mapping[str, Any],
    refusal: type[PacelineError],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the public fields of a changed configuration, and its secret fields.

    A change of an address, or of another field that decides where or how securely secrets are sent,
    has to contain all secrets: otherwise whoever may change a configuration could have the stored
    secrets, which no answer shows, sent to a host of their own.

    Parameters
    ----------
    stored : mapping of str to Any
        The present configuration with its secrets; empty for a new one.
    changes : mapping of str to Any
        Fields to set; null removes a field, and absent fields are kept.
    refusal : type of PacelineError
        Error that is raised if the configuration is invalid.
    """
    try:
        document = _document(kind, {**stored, **changes})
    except ValidationError as error:
        faults = field_faults(error.errors(include_input=False, include_url=False), "config")
        raise refusal("The configuration is not valid.", faults=faults) from None
    faults = (
        *_control_characters(kind, document),
        *_missing_secrets(kind, stored, document, changes),
    )
    if faults:
        raise refusal("The configuration is not valid.", faults=faults)
    given = {name: value for name, value in document.items() if value not in (None, [])}
    secrets = {name: value for name, value in given.items() if name in kind.secrets}
    return {name: value for name, value in given.items() if name not in secrets}, secrets


def _document(kind: Configured, config: Mapping[str, Any]) -> dict[str, Any]:
    present = {name: value for name, value in config.items() if value is not None}
    valid = kind.config.validate_python(present, extra="forbid")
    document: dict[str, Any] = kind.config.dump_python(valid, mode="json")
    return document


def _control_characters(kind: Configured, document: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault for each field with a control character, which could end a header's line.

    Fields that forms show with several lines, such as certificates, are no part of a header.
    """
    areas = {
        field.path
        for field in fields_of(kind.config, "config", secrets=kind.secrets)
        if field.control == "area"
    }
    for name, value in document.items():
        path = f"config.{name}"
        if path not in areas and any(
            unicodedata.category(sign) == "Cc" for text in _texts(value) for sign in text
        ):
            yield Fault(
                "control_character", "Must have no line break or control character", column=path
            )


def _texts(value: object) -> Iterator[str]:
    """Yield the texts within a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from itertools.chain.from_iterable(map(_texts, value))
    elif isinstance(value, dict):
        yield from _texts([*value.keys(), *value.values()])


def _missing_secrets(
    kind: Configured,
    stored: Mapping[str, Any],
    document: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> Iterator[Fault]:
    """Yield a fault for each stored secret that would be sent elsewhere and is not given again."""
    try:
        # Completes fields that did not exist when the configuration was stored.
        before: Mapping[str, Any] = _document(kind, stored)
    except ValidationError:
        before = stored
    moved = [
        name
        for name, value in document.items()
        if before.get(name) != value
        and (
            name not in kind.keep_secrets
            if name not in kind.secrets
            else _address(value) or _address(before.get(name))
        )
    ]
    for name in sorted(kind.secrets & stored.keys() - changes.keys()) if moved else ():
        words = " and ".join(label_of(changed) for changed in moved)
        yield Fault(
            "secret_needed_again",
            f"Enter it again, because {words} changed",
            column=f"config.{name}",
        )


def refuse_private(
    settings: Settings, config: Mapping[str, Any], refusal: type[PacelineError]
) -> None:
    """Refuse addresses in forbidden networks before a configuration is saved.

    A host name that cannot be resolved now passes: it is resolved and checked at each attempt.

    Parameters
    ----------
    refusal : type of PacelineError
        Error that is raised for a forbidden address.
    """
    address_guard = guard(settings)
    faults = []
    for name, value in config.items():
        place = _address(value)
        if place is None:
            continue
        try:
            address_guard.addresses(*place, LOOK_UP_S)
        except DeliveryError as error:
            if error.permanent:
                faults.append(Fault("address_refused", error.sentence, column=f"config.{name}"))
    if faults:
        raise refusal("The address is refused.", faults=tuple(faults))


def _address(value: object) -> tuple[str, int] | None:
    """Return host and port of a value that is a URL, else None."""
    if not isinstance(value, str):
        return None
    try:
        url = urlsplit(value)
        port = url.port
    except ValueError:
        return None
    if url.scheme not in PORTS or url.hostname is None:
        return None
    return url.hostname, port or PORTS[url.scheme]


EXAMPLE_JOB: Final = "example-job"
_CAUSE: Final = next(name for name, kind in KINDS.items() if kind.alerts_alone)


@dataclass(frozen=True, slots=True)
class TestResult:
    """The receiver's answer to a test message."""

    delivered: bool
    # code, error: reason of a failure
    code: str | None
    error: str | None
    status: int | None  # status of the receiver's HTTP answer
    answer: str  # beginning of the receiver's answer


def send_example(container: Container, channel_id: uuid.UUID) -> TestResult:
    """Send a message marked as a test to a channel; return the receiver's answer.

    Raises
    ------
    NotFoundError
    """
    with container.uow() as tx:
        row = tx.session.get(AlertChannel, channel_id)
        if row is None:
            raise no_channel(channel_id)
        record(tx, container.principal, Action.TESTED, f"channel {row.name}")
        target = target_of(row)
        url, project = base_url(container.settings, tx), project_name(tx)
        message = example(container, row.name, tx.now, url, project)
    try:
        answer = attempt(container, target, message)
    except DeliveryError as error:
        got = error.answer or ReceiverAnswer(None, "")
        return TestResult(
            delivered=False,
            code=error.code,
            error=error.sentence,
            status=got.status,
            answer=got.text,
        )
    return TestResult(
        delivered=True, code=None, error=None, status=answer.status, answer=answer.text
    )


def example(
    container: Container, receiver: str, now: datetime, url: str, project: str = DEFAULT_PROJECT
) -> Message:
    """Return an example message that is marked as a test.

    Parameters
    ----------
    url : str
        Address of the project's pages, with a slash at its end.
    """
    facts = Facts(
        session=uuid.UUID(int=0),
        job=EXAMPLE_JOB,
        attempt=1,
        number=14,
        received_at=now - timedelta(minutes=4),
        slowdown=1.31,
        slowdown_ci95=(1.27, 1.36),
        waste=0.237,
        gpu_hours_lost=18.4,
        discrepancy=0.012,
        step_time_s=7.4,
        causes=(
            SuspectedCause(
                _CAUSE,
                ("node-017",),
                confidence=0.94,
                contribution=0.82,
                evidence=("This is an example: no job of yours is slow.",),
            ),
        ),
        worst=(VerdictWorker(3, 1, "node-017", 1.31), VerdictWorker(3, 2, "node-017", 1.06)),
        worst_step=120,
        fix=VerdictFix("Replace node-017", 0.22, 5.8),
        headline=Slowdown(1.36, (1.32, 1.41), 20.6, HeadlineKind.CAUSES),
    )
    alert = Alert(
        incident=uuid.UUID(int=0),
        fingerprint=fingerprint_of(EXAMPLE_JOB, _CAUSE, "node-017"),
        status=Status.FIRING,
        severity="warning",
        cause=_CAUSE,
        where="node-017",
        rules=("Example",),
        since=now - timedelta(minutes=34),
        resolved_at=None,
        why_resolved=None,
        value=1.31,
        facts=facts,
        view_url=url,
        incident_url=f"{url}incidents",
    )
    return Message(
        id=uuid.uuid4(),
        number=0,
        at=now,
        job=EXAMPLE_JOB,
        receiver=receiver,
        alerts=(alert,),
        base_url=url,
        repeat=timing(container.settings).repeat_interval,
        test=True,
        project=project,
    )


LISTED: Final = 50
LISTED_FOR: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A delivery that failed or is not delivered yet."""

    delivery: DeliveryRow  # a delivery that is waiting, being sent, or failed
    overtaken: bool  # whether a later message of the same job was attempted
    can_replay: bool


def undelivered(tx: Reads, channel: uuid.UUID | None = None) -> tuple[Sequence[Undelivered], int]:
    """Return open deliveries and those failed in the last seven days, and their number."""
    later = aliased(AlertDelivery)
    overtaken = exists().where(
        later.channel_id == AlertDelivery.channel_id,
        later.group_id == AlertDelivery.group_id,
        later.number > AlertDelivery.number,
        later.content.is_not(None),
    )
    which = or_(
        AlertDelivery.state.in_(DeliveryState.UNDERWAY),
        and_(
            AlertDelivery.state == DeliveryState.FAILED,
            AlertDelivery.created_at >= func.now() - LISTED_FOR,
        ),
    )
    if channel is not None:
        which = and_(which, AlertDelivery.channel_id == channel)
    rows = (
        tx.session.execute(
            DELIVERIES.query()
            .add_columns(
                AlertChannel.enabled,
                overtaken.label("overtaken"),
                func.count().over().label("in_all"),
            )
            .where(which)
            .order_by(*DELIVERIES.ties)
            .limit(LISTED)
        )
        .mappings()
        .all()
    )
    page = [
        Undelivered(
            delivery=delivery,
            overtaken=row["overtaken"],
            can_replay=row["enabled"]
            and not row["overtaken"]
            and delivery.state in DeliveryState.REPLAYABLE,
        )
        for delivery, row in zip(DELIVERIES.rows(rows), rows, strict=True)
    ]
    return page, rows[0]["in_all"] if rows else 0
