"""CloudEvents 1.0 for machine management systems, signed according to Standard Webhooks.

Events are sent in structured mode: the body is the whole event. Every attempt sends the same event
id.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Generic, Literal, TypeVar
from uuid import UUID

from pydantic import Field, TypeAdapter

from app.actions.kinds.kind import ActionKind, AttemptTools, HangOrder, Order
from app.incidents.channels.webhook import SigningSecrets, signature, signing_key
from app.platform.outbound import ReceiverAnswer, check

CONTENT_TYPE: Final = "application/cloudevents+json"
SCHEMA_PATH: Final = "api/v1/event-schemas?type="

HttpsUrl = Annotated[str, Field(min_length=9, max_length=2000, pattern=r"^https://\S+$")]
LoopbackUrl = Annotated[
    str, Field(max_length=2000, pattern=r"^http://(127\.0\.0\.1|localhost|\[::1\])(:\d+)?(/\S*)?$")
]


class EventType(StrEnum):
    """The types of events."""

    # A user approved the action although a limit held it
    DEGRADED = "dev.paceline.machine.degraded"
    CONFIRMED = "dev.paceline.machine.confirmed"
    RECOVERED = "dev.paceline.machine.recovered"
    HANG = "dev.paceline.job.hang"  # no machine is blamed


RECOMMENDED: Final[Mapping[EventType, Literal["inspect", "replace", "return"]]] = {
    EventType.DEGRADED: "inspect",
    EventType.CONFIRMED: "replace",
    EventType.RECOVERED: "return",
    EventType.HANG: "inspect",
}


@dataclass(frozen=True, slots=True)
class MachineData:
    """The data of an event about a machine."""

    node: str
    gpus: tuple[str, ...]  # GPUs at fault: UUIDs if known
    cause: str
    cause_title: str
    confidence: Annotated[float, Field(ge=0, le=1)] | None
    sessions: Annotated[int, Field(ge=0)]  # number of sessions that blame the machine
    lost_gpu_hours_each_hour: Annotated[float, Field(ge=0)] | None
    job: str
    incident: UUID
    evidence_url: str
    recommended_action: Literal["inspect", "replace", "return"]


@dataclass(frozen=True, slots=True)
class HangData:
    """The data of an event about a job that hangs."""

    job: str
    hang: UUID
    began: datetime
    ranks: Annotated[int, Field(ge=0)]
    waiting: Annotated[int, Field(ge=0)]  # number of ranks that wait for other ranks
    cause: Literal["hang"]
    cause_title: str  # cause as a sentence
    culprits: str  # ranks with host and GPU; may be empty
    confidence: Annotated[float, Field(ge=0, le=1)]
    lost_gpu_hours_each_hour: Annotated[float, Field(ge=0)]
    incident: UUID
    evidence_url: str
    remedy: str
    recommended_action: Literal["inspect"]


Data = TypeVar("Data", MachineData, HangData)


@dataclass(frozen=True, slots=True)
class CloudEvent(Generic[Data]):
    """A CloudEvent about a machine, or about a job that hangs."""

    specversion: Literal["1.0"]
    id: str  # id of the event, the same in every attempt
    source: str  # address of the project's pages
    type: EventType
    subject: str  # name of the node, or of the job
    time: datetime
    datacontenttype: Literal["application/json"]
    dataschema: str
    data: Data


MACHINE_EVENT: Final = TypeAdapter(CloudEvent[MachineData])
HANG_EVENT: Final = TypeAdapter(CloudEvent[HangData])


@dataclass(frozen=True, slots=True)
class EventConfig:
    """The address that events are sent to, and the secrets that sign them."""

    url: Annotated[HttpsUrl | LoopbackUrl, Field(examples=["https://hardware.example.com/events"])]
    signing_secrets: SigningSecrets = ()

    def __post_init__(self) -> None:
        for secret in self.signing_secrets:
            signing_key(secret)


def schema_of(kind: EventType) -> dict[str, Any]:
    """Return the JSON Schema of an event type."""
    of_job = kind is EventType.HANG
    schema = (HANG_EVENT if of_job else MACHINE_EVENT).json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = kind.value
    schema["properties"]["type"] = {"const": kind.value}
    data = schema["$defs"]["HangData" if of_job else "MachineData"]
    data["properties"]["recommended_action"] = {"const": RECOMMENDED[kind]}
    del schema["$defs"]["EventType"]
    return schema


def machine_event(order: Order, kind: EventType) -> CloudEvent[MachineData]:
    """Return the event for an order on a machine."""
    data = MachineData(
        node=order.node,
        gpus=order.gpus,
        cause=order.cause,
        cause_title=order.cause_title,
        confidence=order.confidence,
        sessions=order.sessions,
        lost_gpu_hours_each_hour=order.lost_each_hour,
        job=order.job,
        incident=order.incident,
        evidence_url=order.evidence_url,
        recommended_action=RECOMMENDED[kind],
    )
    return _event(order, kind, order.node, data)


def hang_event(order: HangOrder) -> CloudEvent[HangData]:
    """Return the event for a job that hangs."""
    data = HangData(
        job=order.job,
        hang=order.hang,
        began=order.began,
        ranks=order.ranks,
        waiting=order.waiting,
        cause="hang",
        cause_title=order.sentence,
        culprits=order.culprits,
        confidence=order.confidence,
        # Each rank loses its GPU for the whole hour, because no GPU computes during a hang.
        lost_gpu_hours_each_hour=float(order.ranks),
        incident=order.incident,
        evidence_url=order.evidence_url,
        remedy=order.remedy,
        recommended_action="inspect",
    )
    return _event(order, EventType.HANG, order.job, data)


def _event(order: Order | HangOrder, kind: EventType, subject: str, data: Data) -> CloudEvent[Data]:
    return CloudEvent(
        specversion="1.0",
        id=f"{order.id.hex}_{kind.rpartition('.')[2]}",
        source=order.source_url,
        type=kind,
        subject=subject,
        time=order.at,
        datacontenttype="application/json",
        dataschema=f"{order.source_url}{SCHEMA_PATH}{kind}",
        data=data,
    )


def describe(config: EventConfig, order: Order) -> str:
    """Return the event's type and subject as text; the address is left out because it is secret."""
    del config
    return f"{_type(order)} about {order.node}"


def act(config: EventConfig, order: Order, means: AttemptTools) -> ReceiverAnswer:
    """Send an event that a machine is at fault."""
    return _post_machine(config, order, _type(order), means)


def release(config: EventConfig, order: Order, means: AttemptTools) -> ReceiverAnswer:
    """Send an event that a machine is repaired."""
    return _post_machine(config, order, EventType.RECOVERED, means)


def report_hang(config: EventConfig, order: HangOrder, means: AttemptTools) -> ReceiverAnswer:
    """Send an event that a job hangs."""
    event = hang_event(order)
    return _post(config, event.id, HANG_EVENT.dump_json(event), means)


def _type(order: Order) -> EventType:
    return EventType.CONFIRMED if order.confirmed else EventType.DEGRADED


def _post_machine(
    config: EventConfig, order: Order, kind: EventType, means: AttemptTools
) -> ReceiverAnswer:
    event = machine_event(order, kind)
    return _post(config, event.id, MACHINE_EVENT.dump_json(event), means)


def _post(config: EventConfig, event_id: str, body: bytes, means: AttemptTools) -> ReceiverAnswer:
    timestamp, message_id = str(int(time.time())), f"evt_{event_id}"
    headers = {
        "Content-Type": CONTENT_TYPE,
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
    }
    if config.signing_secrets:
        headers["webhook-signature"] = signature(
            config.signing_secrets, message_id, timestamp, body
        )
    return check(means.outbound.post(config.url, body, headers))


EVENTS: Final = ActionKind(
    name="event",
    title="CloudEvents",
    config=TypeAdapter(EventConfig),
    secrets=frozenset({"url", "signing_secrets"}),
    describe=describe,
    act=act,
    release=release,
    report_hang=report_hang,
)
