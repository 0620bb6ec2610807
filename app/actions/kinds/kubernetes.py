"""Kubernetes: a node gets a taint, a condition and an event, and is optionally cordoned.

Jobs are the running pods of the namespaces that the configuration names.

The API server is called without a client library. A patch replaces the whole list of taints, so it
contains the ``resourceVersion`` that was read, and no taint of another program is lost. Changes
contain the id of the action, so that a release undoes only its own changes.
"""

from __future__ import annotations

import json
import shlex
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from typing import Annotated, Any, Final
from urllib.parse import quote

from pydantic import Field, TypeAdapter

from app.actions.kinds.event import HttpsUrl, LoopbackUrl
from app.actions.kinds.kind import (
    MAX_PLACEMENTS,
    ActionKind,
    AttemptTools,
    Order,
    Placement,
    Scheduler,
    require_one_node,
    too_many_placements,
)
from app.incidents.channels.kind import HeaderValue
from app.incidents.held_machines import is_one_node
from app.platform.outbound import (
    MAX_ANSWER_BYTES,
    DeliveryError,
    Outbound,
    ReceiverAnswer,
    check,
)

TAINT: Final = "paceline.dev/straggler"
EFFECT: Final = "NoSchedule"
CONDITION: Final = "PacelineStraggler"
# Annotation of a node that an action cordoned; absent if the node was cordoned before.
CORDONED_BY: Final = "paceline.dev/cordoned-by"
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
# Maximum length in characters of an event's message.
MESSAGE_CHARACTERS: Final = 1000
# Status of the answer if the node changed between reading and patching, or if the event exists.
CONFLICT: Final = 409
NOT_FOUND: Final = 404
DENIED: Final = (401, 403)
# Maximum of pods or nodes in an answer, and of its bytes: a pod's document has about 10 kB.
PAGE: Final = 250
PAGE_BYTES: Final = 16 * 1024 * 1024
# Media type of a list of nodes without their status, which lists every image on them.
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
# Maximum of retries after such conflicts within an attempt.
TRIES: Final = 5


Namespace = Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")]


@dataclass(frozen=True, slots=True)
class KubernetesConfig:
    """The address of the API server, and the service account that actions use."""

    server: Annotated[
        HttpsUrl | LoopbackUrl, Field(examples=["https://kubernetes.example.com:6443"])
    ]
    token: Annotated[HeaderValue, Field(description="Of a service account.")]
    ca_certificate: Annotated[
        str | None,
        Field(max_length=20_000, description="PEM, where the system's authorities do not sign."),
    ] = None
    cordon: Annotated[bool, Field(description="Whether the node is cordoned as well.")] = False
    namespaces: Annotated[
        tuple[Namespace, ...],
        Field(
            max_length=100,
            description=(
                "Namespaces whose pods are this project's: only nodes of such pods are tainted."
            ),
            examples=["research"],
        ),
    ] = ()

    def __post_init__(self) -> None:
        if self.ca_certificate is not None:
            _tls(self.ca_certificate)


def describe(config: KubernetesConfig, order: Order) -> str:
    """Return the equivalent kubectl commands."""
    taint = shlex.join(
        ["kubectl", "taint", "nodes", order.node, f"{TAINT}={order.id.hex}:{EFFECT}"]
    )
    cordon = shlex.join(["kubectl", "cordon", order.node])
    return f"{taint} && {cordon}" if config.cordon else taint


def act(config: KubernetesConfig, order: Order, means: AttemptTools) -> ReceiverAnswer:
    """Taint the node; its running pods continue."""
    with _Api.of(config, order, means) as api:
        for _ in range(TRIES):
            node = api.node()
            patch = _with_taint(node, order, cordon=config.cordon)
            if patch is None or api.patch_node(patch):
                break
        else:
            raise _busy()
        api.condition(on=True)
        api.event(node["metadata"].get("uid", ""))
    return ReceiverAnswer(None, "tainted and cordoned" if config.cordon else "tainted")


def release(config: KubernetesConfig, order: Order, means: AttemptTools) -> ReceiverAnswer:
    """Remove the taint of this action, and undo its other changes."""
    with _Api.of(config, order, means) as api:
        for _ in range(TRIES):
            patch = _without_taint(api.node(), order)
            if patch is None or api.patch_node(patch):
                break
        else:
            raise _busy()
        api.condition(on=False)
    return ReceiverAnswer(None, "not tainted any more" if patch is None else "taint removed")


def placements(config: KubernetesConfig, means: AttemptTools) -> Sequence[Placement]:
    """Return the nodes of the running pods in the namespaces.

    Raises
    ------
    DeliveryError
        ``kubernetes.no_namespaces`` if the configuration names no namespace.
    """
    if not config.namespaces:
        raise DeliveryError(
            "kubernetes.no_namespaces",
            "Name the namespaces of this project in the policy: without them no node is known to "
            "be the project's.",
        )
    found: set[Placement] = set()
    with _Connection.of(config, means) as connection:
        try:
            nodes = connection.items("/api/v1/nodes?", METADATA_LIST)
            ids = {
                _name(node["metadata"]["name"]): _name(node["metadata"]["uid"]) for node in nodes
            }
            for namespace in config.namespaces:
                path = f"/api/v1/namespaces/{namespace}/pods?fieldSelector=status.phase%3DRunning&"
                for pod in connection.items(path):
                    node, name = pod["spec"].get("nodeName"), _name(pod["metadata"]["name"])
                    if node in ids:
                        found.add(Placement(node, ids[node], f"kubernetes/{namespace}/{name}"))
                    if len(found) > MAX_PLACEMENTS:
                        raise too_many_placements()
        except (KeyError, TypeError, AttributeError) as error:
            raise DeliveryError("kubernetes.answer", "The answer is no list.") from error
    return sorted(found, key=lambda each: (each.node, each.job))


def _name(value: object) -> str:
    if not isinstance(value, str) or not is_one_node(value):
        raise DeliveryError("kubernetes.answer", "The answer has an invalid name.")
    return value


def _with_taint(node: dict[str, Any], order: Order, *, cordon: bool) -> dict[str, Any] | None:
    """Return the patch that taints a node; None if this action has tainted it already.

    Raises
    ------
    DeliveryError
        ``kubernetes.tainted`` if another action tainted the node.
    """
    spec, taints = node["spec"], node["spec"].get("taints") or []
    ours = next(
        (taint for taint in taints if taint["key"] == TAINT and taint["effect"] == EFFECT), None
    )
    if ours is not None:
        if ours.get("value") == order.id.hex:
            return None
        raise DeliveryError(
            "kubernetes.tainted", "Another action has tainted the node.", permanent=True
        )
    changed: dict[str, Any] = {
        "taints": [*taints, {"key": TAINT, "value": order.id.hex, "effect": EFFECT}]
    }
    metadata: dict[str, Any] = {"resourceVersion": node["metadata"]["resourceVersion"]}
    if cordon and not spec.get("unschedulable"):
        changed["unschedulable"] = True
        metadata["annotations"] = {CORDONED_BY: order.id.hex}
    return {"metadata": metadata, "spec": changed}


def _without_taint(node: dict[str, Any], order: Order) -> dict[str, Any] | None:
    """Return the patch that undoes an action; None if nothing remains to be undone."""
    taints = node["spec"].get("taints") or []
    left = [
        taint for taint in taints if (taint["key"], taint.get("value")) != (TAINT, order.id.hex)
    ]
    annotations = node["metadata"].get("annotations") or {}
    cordoned = annotations.get(CORDONED_BY) == order.id.hex
    if len(left) == len(taints) and not cordoned:
        return None
    changed: dict[str, Any] = {"taints": left}
    metadata: dict[str, Any] = {"resourceVersion": node["metadata"]["resourceVersion"]}
    if cordoned:
        changed["unschedulable"] = None
        metadata["annotations"] = {CORDONED_BY: None}
    return {"metadata": metadata, "spec": changed}


@dataclass(frozen=True, slots=True)
class _Connection:
    """Requests to the API server with the configuration's token."""

    config: KubernetesConfig
    outbound: Outbound

    @classmethod
    @contextmanager
    def of(cls, config: KubernetesConfig, means: AttemptTools) -> Iterator[_Connection]:
        tls = None if config.ca_certificate is None else _tls(config.ca_certificate)
        outer = means.outbound
        with Outbound(outer.guard, outer.left_s(), tls=tls) as outbound:
            yield cls(config, outbound)

    def ask(  # noqa: PLR0913 - the parts of a request
        self,
        method: str,
        path: str,
        document: dict[str, Any] | None = None,
        media_type: str = "application/json",
        *,
        passing: int | None = None,
        accept: str = "application/json",
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> tuple[int, dict[str, Any]]:
        """Return an answer's status and document; the status `passing` is not an error."""
        headers = {
            "Authorization": f"Bearer {self.config.token}",
            "Accept": accept,
            "Content-Type": media_type,
        }
        body = None if document is None else json.dumps(document).encode()
        url = self.config.server.rstrip("/") + path
        response = self.outbound.request(method, url, body, headers, max_bytes=max_bytes)
        if response.status == passing:
            return response.status, {}
        if response.status == NOT_FOUND:
            raise DeliveryError(
                "kubernetes.unknown_node",
                "Kubernetes knows no node of this name.",
                permanent=True,
                answer=response.answer,
            )
        if response.status in DENIED:
            raise DeliveryError(
                "kubernetes.denied",
                "The service account may not do this.",
                permanent=True,
                answer=response.answer,
            )
        check(response)
        try:
            document = json.loads(response.body)
        except ValueError as error:
            raise DeliveryError("kubernetes.answer", "The answer is no JSON.") from error
        if not isinstance(document, dict):
            raise DeliveryError("kubernetes.answer", "The answer is no object.")
        return response.status, document

    def items(self, path: str, accept: str = "application/json") -> Iterator[dict[str, Any]]:
        """Yield the items of a list, which the API server sends in pages."""
        count, rest = 0, ""
        while True:
            _, page = self.ask(
                "GET", f"{path}limit={PAGE}{rest}", accept=accept, max_bytes=PAGE_BYTES
            )
            for item in page.get("items") or ():
                count += 1
                if count > MAX_PLACEMENTS:
                    raise too_many_placements()
                yield item
            following = page["metadata"].get("continue")
            if not following:
                return
            rest = f"&continue={quote(following, safe='')}"


@dataclass(frozen=True, slots=True)
class _Api:
    """Requests to the API server about one node."""

    connection: _Connection
    order: Order

    @classmethod
    @contextmanager
    def of(cls, config: KubernetesConfig, order: Order, means: AttemptTools) -> Iterator[_Api]:
        require_one_node(order.node)
        with _Connection.of(config, means) as connection:
            yield cls(connection, order)

    @property
    def _path(self) -> str:
        return f"/api/v1/nodes/{quote(self.order.node, safe='')}"

    def node(self) -> dict[str, Any]:
        """Return the node's document."""
        _, document = self.connection.ask("GET", self._path)
        return document

    def patch_node(self, patch: dict[str, Any]) -> bool:
        """Patch the node; return False if the node changed since it was read."""
        status, _ = self.connection.ask("PATCH", self._path, patch, MERGE, passing=CONFLICT)
        return status != CONFLICT

    def condition(self, *, on: bool) -> None:
        """Set the condition in the node's status."""
        at = self._at()
        condition = {
            "type": CONDITION,
            "status": "True" if on else "False",
            "reason": "Blamed" if on else "Released",
            "message": self._message() if on else f"Released by Paceline action {self.order.id}",
            "lastHeartbeatTime": at,
            "lastTransitionTime": at,
        }
        patch = {"status": {"conditions": [condition]}}
        self.connection.ask("PATCH", f"{self._path}/status", patch, STRATEGIC)

    def event(self, uid: str) -> None:
        """Create this action's event, unless an earlier attempt created it."""
        at, name = self._at(), self.order.node
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"paceline.{self.order.id.hex}", "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid},
            "type": "Warning",
            "reason": CONDITION,
            "message": self._message(),
            "source": {"component": "paceline"},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        path = "/api/v1/namespaces/default/events"
        self.connection.ask("POST", path, event, passing=CONFLICT)

    def _at(self) -> str:
        return self.order.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _message(self) -> str:
        return f"{self.order.cause_title}, {self.order.evidence_url}"[:MESSAGE_CHARACTERS]


def _busy() -> DeliveryError:
    return DeliveryError("kubernetes.busy", "The node changes faster than it can be patched.")


def _tls(certificate: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=certificate)
    except ssl.SSLError as error:
        raise ValueError("is no certificate in PEM") from error


KUBERNETES: Final = ActionKind(
    name="kubernetes",
    title="Kubernetes",
    config=TypeAdapter(KubernetesConfig),
    secrets=frozenset({"token"}),
    keep_secrets=frozenset({"cordon", "namespaces"}),
    describe=describe,
    act=act,
    release=release,
    scheduler=Scheduler(
        scope=lambda config: (config.server, *config.namespaces), placements=placements
    ),
)
