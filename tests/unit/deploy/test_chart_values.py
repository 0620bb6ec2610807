"""The chart refuses invalid values, and the documentation of values is true."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from app.platform.settings import Settings
from tests.support.helm import CHART, NAME, NAMESPACE, VALUES, helm, rendered, template

ROOT: Final = Path(__file__).parents[3]
# Settings with values of their own in the chart, or without use in pods.
OF_THE_CHART: Final = {
    *("database_url", "broker_url", "secret_keys", "secret_key_file", "admin_token_file"),
    *("metrics_token", "oidc_client_secret", "external_url", "data_dir", "instance_name"),
    *("host", "port", "blob_url", "blob_endpoint", "blob_region"),
    *("blob_access_key_id", "blob_secret_access_key"),
}
# Invalid assignments, and the path with which each is refused; one run of helm names all of them.
REFUSED: Final = {
    "image.repository=": "/image/repository",
    "image.digest=latest": "/image/digest",
    "externalUrl=paceline.example": "/externalUrl",
    "existingSecret=Not A Name": "/existingSecret",
    "secrets.databaseUrl.value=postgresql://paceline:password@postgres/x": "/secrets/databaseUrl",
    "secrets.brokerUrl.key=": "/secrets/brokerUrl/key",
    "secrets.blobAccessKeyId.key=key": "/secrets/blobSecretAccessKey/key",
    "objectStore.endpoint=https://s3.example": "/objectStore/url",
    "replicas=3": "",
    "api.replicas=0": "/api/replicas",
    "api.processes=many": "/api/processes",
    "api.spoolSizeLimit=4GB": "/api/spoolSizeLimit",
    "api.resources.limit.memory=1Gi": "/api/resources",
    "worker.processes=257": "/worker/processes",
    "worker.keda.enabled=true": "/worker/keda/serverAddress",
    "worker.autoscaling.enabled=true": "/worker/keda/enabled",
    "httpRoute.enabled=true": "/httpRoute/parentRefs",
    "ingress.hosts[0]=https://paceline.example": "/ingress/hosts/0",
    "monitoring.serviceMonitor.enabled=true": "/secrets/metricsToken/key",
    "settings.PACELINE_ALLOWED_HOSTS=paceline.example": "/settings/PACELINE_ALLOWED_HOSTS",
    "settings.PACELINE_LOG_LEVELS=debug": "/settings",
    "extraEnv[0].name=PACELINE_LOG_LEVEL": "/extraEnv/0/name",
    "runAsUser=0": "/runAsUser",
}


@pytest.fixture(scope="module")
def defaults() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return document


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return document


@pytest.fixture(scope="module")
def section() -> str:
    page = (ROOT / "docs" / "operations.md").read_text()
    return page.partition("\n## Kubernetes\n")[2].partition("\n## ")[0]


def test_values_that_do_not_fit_are_refused_with_their_paths() -> None:
    done = template(VALUES["minimal"], *REFUSED)
    named = set(re.findall(r"^ *- at '([^']*)':", done.stderr, re.MULTILINE))

    assert done.returncode != 0
    assert done.stdout == ""
    assert set(REFUSED.values()) <= named
    # The other named paths contain the refused ones.
    for path in named - set(REFUSED.values()):
        assert any(refused.startswith(f"{path}/") for refused in REFUSED.values()), path


@pytest.mark.parametrize(
    ("assignment", "path"),
    [
        ("existingSecret=", "at '/existingSecret'"),
        ("objectStore.url=https://s3.example", "at '/objectStore/url'"),
        # Secrets are refused as settings.
        ("settings.PACELINE_METRICS_TOKEN=secret", "'PACELINE_METRICS_TOKEN' not allowed"),
        # Conditions that a schema cannot express.
        (
            "worker.autoscaling.enabled=true,worker.autoscaling.minReplicas=9",
            "worker.autoscaling.maxReplicas: 8 is less than minReplicas, 9",
        ),
    ],
)
def test_one_value_that_does_not_fit_is_enough(assignment: str, path: str) -> None:
    done = template(VALUES["minimal"], assignment)

    assert done.returncode != 0
    assert done.stdout == ""
    assert path in done.stderr


def test_values_that_are_always_set_are_required(defaults: dict[str, Any]) -> None:
    done = template()

    assert done.returncode != 0
    for path in ("/image/repository", "/externalUrl", "/existingSecret"):
        assert path in done.stderr
    # No default value contains a secret, or the name of one that may exist.
    assert defaults["existingSecret"] == ""
    assert {secret["name"] for secret in defaults["secrets"].values()} == {""}


def test_every_setting_has_one_place(schema: dict[str, Any]) -> None:
    others = {
        f"PACELINE_{name.upper()}" for name in Settings.model_fields if name not in OF_THE_CHART
    }

    assert Settings.model_fields.keys() >= OF_THE_CHART
    assert set(schema["properties"]["settings"]["properties"]) == others


def paths(values: dict[str, Any], prefix: str = "") -> set[str]:
    """Return the dotted paths of all values."""
    found = set()
    for name, value in values.items():
        found.add(f"{prefix}{name}")
        if isinstance(value, dict):
            found |= paths(value, f"{prefix}{name}.")
    return found


def properties(schema: dict[str, Any], of: dict[str, Any], prefix: str = "") -> set[str]:
    """Return the dotted paths of all values in a schema."""
    if "$ref" in of:
        of = schema["$defs"][of["$ref"].rpartition("/")[2]]
    found = set()
    for name, below in of.get("properties", {}).items():
        found |= {f"{prefix}{name}", *properties(schema, below, f"{prefix}{name}.")}
    return found


def test_the_schema_and_the_defaults_name_the_same_values(
    schema: dict[str, Any], defaults: dict[str, Any]
) -> None:
    known = properties(schema, schema)
    set_by_their_users = ("settings.", "global")
    # Values with Kubernetes' own fields, or with free labels.
    free = re.compile(r"\.(resources|labels)\.")

    named = {path for path in known if not path.startswith(set_by_their_users)}
    given = paths(defaults)
    assert {path for path in given - named if not free.search(path)} == set()
    assert {path for path in named - given if not free.search(path)} == set()


def test_the_values_of_the_documentation_exist(
    section: str, schema: dict[str, Any], defaults: dict[str, Any]
) -> None:
    known = properties(schema, schema)
    tops = "|".join(defaults)
    named = set(re.findall(rf"`((?:{tops})(?:\.\w+)*)`", section))
    named |= set(re.findall(r"--set ([\w.]+)=", section))

    assert len(named) > 20
    assert named <= known


def test_the_values_file_of_the_documentation_can_be_installed(
    section: str, tmp_path: Path
) -> None:
    (text,) = re.findall(r"```yaml\n# values\.yaml\n(.*?)```", section, re.DOTALL)
    values = tmp_path / "values.yaml"
    values.write_text(text)

    kinds = {manifest["kind"] for manifest in rendered(values)}
    assert {"Deployment", "Job", "Service", "Ingress"} <= kinds


def test_the_secret_of_the_documentation_has_the_keys_that_are_asked_for(
    section: str, defaults: dict[str, Any]
) -> None:
    (text,) = re.findall(r"<<END\n(.*?)\nEND", section, re.DOTALL)
    keys = {line.partition("=")[0] for line in text.splitlines()}

    wanted = {secret["key"] for secret in defaults["secrets"].values()} - {""}
    assert keys == wanted | {"metrics-token"}
    assert f"secret generic {NAME} --from-env-file" in section


def test_the_commands_of_the_documentation_name_what_is_there(section: str) -> None:
    names = {
        manifest["metadata"]["name"]
        for manifest in rendered(VALUES["minimal"])
        if manifest["kind"] == "Deployment"
    }

    assert set(re.findall(r"deployment/([\w-]+)", section)) <= names
    for chart in re.findall(rf"--install {NAME} (\S+)", section):
        assert (ROOT / chart).resolve() == CHART.resolve()


def test_what_helm_prints_after_an_install_names_what_is_there() -> None:
    done = helm(
        *("install", NAME, CHART, "--namespace", NAMESPACE, "--dry-run=client"),
        *("--values", VALUES["store"]),
    )
    notes = done.stdout.partition("NOTES:\n")[2]

    assert done.returncode == 0, done.stderr
    assert f"deployment/{NAME}-api" in notes
    assert f"deployment/{NAME}-worker -- paceline user create" in notes
    # These values have neither an administrator's token nor an ingress.
    assert "Servers wait for an administrator" in notes
    assert f"port-forward service/{NAME} 8765:80" in notes
