"""Schemas of the custom resources that the chart uses, by API version and kind.

Kubernetes' own schemas do not contain them. They follow the definitions of the Prometheus Operator
(v1), of Gateway API (v1) and of KEDA (v1alpha1), without the fields that the chart does not use, so
these fields are refused.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
TEXTS: Final[Schema] = {"type": "object", "additionalProperties": TEXT}
DURATION: Final[Schema] = {"type": "string", "pattern": r"^[0-9]+(ms|s|m|h|d)$"}
DNS_NAME: Final[Schema] = {"type": "string", "pattern": r"^(\*\.)?[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"}
PORT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 65535}


def _object(required: str = "", /, **properties: Schema) -> Schema:
    """Return the schema of an object that has no other properties."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": required.split(),
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "minItems": 1, "items": items}


def _resource(api_version: str, kind: str, spec: Schema) -> Schema:
    metadata = _object(
        "name labels", name=DNS_NAME, namespace=DNS_NAME, labels=TEXTS, annotations=TEXTS
    )
    return _object(
        "apiVersion kind metadata spec",
        apiVersion={"const": api_version},
        kind={"const": kind},
        metadata=metadata,
        spec=spec,
    )


SERVICE_MONITOR: Final = _object(
    "selector endpoints",
    selector=_object("matchLabels", matchLabels=TEXTS),
    endpoints=_list(
        _object(
            "port",
            port=TEXT,
            path=TEXT,
            interval=DURATION,
            authorization=_object(
                "credentials", type=TEXT, credentials=_object("key", name=TEXT, key=TEXT)
            ),
        )
    ),
)
PROMETHEUS_RULE: Final = _object(
    "groups",
    groups=_list(
        _object(
            "name rules",
            name={"type": "string", "minLength": 1},
            rules=_list(
                _object(
                    "alert expr",
                    alert=TEXT,
                    expr=TEXT,
                    labels=TEXTS,
                    annotations=TEXTS,
                    **{"for": DURATION},
                )
            ),
        )
    ),
)
HTTP_ROUTE: Final = _object(
    "parentRefs rules",
    parentRefs=_list(
        _object(
            "name",
            group=TEXT,
            kind=TEXT,
            name=DNS_NAME,
            namespace=DNS_NAME,
            sectionName=DNS_NAME,
            port=PORT,
        )
    ),
    hostnames=_list(DNS_NAME),
    rules=_list(
        _object(
            "backendRefs",
            matches=_list(
                _object(
                    path=_object(
                        type={"enum": ["Exact", "PathPrefix", "RegularExpression"]}, value=TEXT
                    )
                )
            ),
            timeouts=_object(
                request={"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
            ),
            backendRefs=_list(_object("name port", name=DNS_NAME, port=PORT)),
        )
    ),
)
SCALED_OBJECT: Final = _object(
    "scaleTargetRef triggers",
    scaleTargetRef=_object("name", apiVersion=TEXT, kind=TEXT, name=DNS_NAME),
    minReplicaCount={"type": "integer", "minimum": 0},
    maxReplicaCount={"type": "integer", "minimum": 1},
    cooldownPeriod={"type": "integer", "minimum": 0},
    triggers=_list(
        _object(
            "type metadata",
            type={"const": "prometheus"},
            name=TEXT,
            # Metadata of KEDA's triggers are texts, numbers too.
            metadata=_object(
                "serverAddress query threshold",
                serverAddress={"type": "string", "pattern": "^https?://"},
                query={"type": "string", "minLength": 1},
                threshold={"type": "string", "pattern": "^[0-9]+$"},
            ),
            authenticationRef=_object("name", name=DNS_NAME, kind=TEXT),
        )
    ),
)
SCHEMAS: Final = {
    (api_version, kind): _resource(api_version, kind, spec)
    for api_version, kind, spec in (
        ("monitoring.coreos.com/v1", "ServiceMonitor", SERVICE_MONITOR),
        ("monitoring.coreos.com/v1", "PrometheusRule", PROMETHEUS_RULE),
        ("gateway.networking.k8s.io/v1", "HTTPRoute", HTTP_ROUTE),
        ("keda.sh/v1alpha1", "ScaledObject", SCALED_OBJECT),
    )
}
