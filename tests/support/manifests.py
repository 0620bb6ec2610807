"""Validation of manifests against the schemas of Kubernetes and of custom resources."""

from __future__ import annotations

import functools
from typing import Any

import jsonschema
from kubernetes_validate import utils as kubernetes
from referencing import Registry, Resource

from tests.support.custom_resources import SCHEMAS
from tests.support.helm import Manifest


def faults(manifest: Manifest, version: str) -> list[str]:
    """Return the unknown and the missing fields of a manifest, by path."""
    schema = _validator(manifest["apiVersion"], manifest["kind"], version)
    return [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message}"
        for error in schema.iter_errors(manifest)
    ]


# The package's own function reads and resolves all definitions again for each manifest.
@functools.cache
def _validator(api_version: str, kind: str, version: str) -> jsonschema.protocols.Validator:
    if (api_version, kind) in SCHEMAS:
        return jsonschema.Draft202012Validator(SCHEMAS[api_version, kind])
    group, _, release = api_version.rpartition("/")
    name = "-".join(filter(None, (kind.lower(), group.partition(".")[0], release)))
    return jsonschema.Draft202012Validator(
        _contents(f"{_folder(version)}/{name}.json", version), registry=_definitions(version)
    )


@functools.cache
def _definitions(version: str) -> Registry[Any]:
    held = Resource.from_contents(_contents(f"{_folder(version)}/_definitions.json", version))
    empty: Registry[Any] = Registry()
    return held @ empty


def _folder(version: str) -> str:
    return f"kubernetes-json-schema/v{version}.0-local-strict"


def _contents(path: str, version: str) -> Any:  # noqa: ANN401 - a schema
    return kubernetes.schema_contents(path, version)
