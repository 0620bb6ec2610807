"""The Helm chart's manifests for Kubernetes."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Final

import pytest
import yaml

from app.platform.settings import Settings
from tests.support.command import paceline
from tests.support.helm import (
    CHART,
    NAME,
    NAMESPACE,
    VALUES,
    Manifest,
    containers,
    helm,
    of_kind,
    pods,
    rendered,
)
from tests.support.manifests import faults

ROOT: Final = Path(__file__).parents[3]
# The oldest Kubernetes version that Chart.yaml allows, and the newest one with known schemas.
VERSIONS: Final = ("1.30", "1.37")
SECRET: Final = re.compile("(DATABASE_URL|BROKER_URL|TOKEN|SECRET|KEYS|KEY_ID|ACCESS_KEY)$")


@pytest.fixture(scope="module")
def charts() -> dict[str, list[Manifest]]:
    return {name: rendered(path) for name, path in VALUES.items()}


@pytest.fixture(scope="module")
def image() -> dict[str, str]:
    """Return the variables of the image."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    lines = re.findall(r"^ENV (.*)$", text, re.MULTILINE)
    return dict(word.split("=", 1) for word in shlex.split(lines[-1]))


def test_the_five_sets_of_values_have_everything_on_in_one_of_them(
    charts: dict[str, list[Manifest]],
) -> None:
    made = {name: {manifest["kind"] for manifest in chart} for name, chart in charts.items()}

    assert len(charts) == 5
    assert made["minimal"] == {
        *("Deployment", "Job", "Pod", "PodDisruptionBudget", "Service", "ServiceAccount")
    }
    assert made["replicas"] - made["minimal"] == {"HorizontalPodAutoscaler", "Ingress"}
    assert made["gateway"] - made["minimal"] == {"HTTPRoute", "NetworkPolicy"}
    assert made["monitoring"] - made["minimal"] == {"ConfigMap", "PrometheusRule", "ServiceMonitor"}
    assert made["store"] - made["minimal"] == {"ScaledObject"}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_helm_finds_nothing_to_blame(values: Path) -> None:
    done = helm("lint", "--strict", CHART, "--values", values)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_fits_the_schema_of_its_kind(
    charts: dict[str, list[Manifest]], version: str
) -> None:
    for name, chart in charts.items():
        for manifest in chart:
            found = faults(manifest, version)
            assert found == [], (name, manifest["kind"], manifest["metadata"]["name"])


def test_a_manifest_that_does_not_fit_is_noticed(charts: dict[str, list[Manifest]]) -> None:
    (service,) = of_kind(charts["minimal"], "Service")
    (monitor,) = of_kind(charts["monitoring"], "ServiceMonitor")

    assert faults(service | {"spec": service["spec"] | {"ports": "80"}}, VERSIONS[0])
    assert faults(service | {"specs": {}}, VERSIONS[0])
    assert faults(monitor | {"spec": monitor["spec"] | {"endpoint": []}}, VERSIONS[0])


def test_everything_is_in_the_releases_namespace_under_a_name_of_its_own(
    charts: dict[str, list[Manifest]],
) -> None:
    for chart in charts.values():
        names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in chart]
        assert len(names) == len(set(names))
        assert all(name == NAME or name.startswith(f"{NAME}-") for _, name in names)
        assert {manifest["metadata"]["namespace"] for manifest in chart} == {NAMESPACE}


def test_no_pod_has_privileges_or_a_token_or_a_root_that_can_be_written(
    charts: dict[str, list[Manifest]],
) -> None:
    for name, chart in charts.items():
        for component, pod in pods(chart):
            assert pod["automountServiceAccountToken"] is False, (name, component)
            assert pod["enableServiceLinks"] is False, (name, component)
            assert pod["securityContext"]["runAsNonRoot"] is True, (name, component)
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod), (name, component)
            assert not [volume for volume in pod.get("volumes", ()) if "hostPath" in volume]
        for component, container in containers(chart):
            assert container["securityContext"] == {
                "privileged": False,
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, (name, component)
            assert set(container["resources"]) >= {"requests", "limits"}, (name, component)


def test_pods_run_as_the_user_of_the_image_unless_the_platform_gives_one(
    charts: dict[str, list[Manifest]],
) -> None:
    (user,) = re.findall(r"^USER (\d+):\d+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)

    for name, chart in charts.items():
        wanted = None if name == "store" else int(user)
        assert {pod["securityContext"].get("runAsUser") for _, pod in pods(chart)} == {wanted}


def test_every_place_that_the_program_writes_to_is_a_volume(
    charts: dict[str, list[Manifest]], image: dict[str, str]
) -> None:
    written = {image[name] for name in ("HOME", "PACELINE_DATA_DIR", "NUMBA_CACHE_DIR")}

    for component, pod in pods(charts["minimal"]):
        if component == "test":
            continue
        empty = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        assert all("sizeLimit" in volume.get("emptyDir", volume) for volume in pod["volumes"][:2])
        mounts = pod["containers"][0]["volumeMounts"]
        paths = [Path(mount["mountPath"]) for mount in mounts if mount["name"] in empty]
        for place in written:
            assert any(Path(place).is_relative_to(path) for path in paths), (component, place)


def test_the_commands_of_the_pods_exist(charts: dict[str, list[Manifest]]) -> None:
    commands = {
        (component, *container["args"])
        for component, container in containers(charts["replicas"])
        if "args" in container
    }

    assert commands == {
        ("api", "serve", "--workers", "2"),
        ("worker", "worker", "--processes", "2"),
        ("migrate", "migrate"),
    }
    for _, *command in commands:
        shown = paceline(*command, "--help")
        assert shown.returncode == 0, (command, shown.stderr)


def environment(container: Manifest) -> dict[str, Manifest]:
    """Return the variables of a container by name, after checking that each occurs once."""
    variables = container.get("env", [])
    by_name = {variable["name"]: variable for variable in variables}
    assert len(by_name) == len(variables)
    return by_name


def test_every_variable_is_a_setting_that_the_program_takes(
    charts: dict[str, list[Manifest]], image: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {f"PACELINE_{name.upper()}" for name in Settings.model_fields}
    secret = {
        "PACELINE_DATABASE_URL": "postgresql://paceline:password@postgres/paceline",
        "PACELINE_BROKER_URL": "redis://:password@redis:6379/0",
        "PACELINE_SECRET_KEYS": "0" * 43 + "=",
    }
    for name, chart in charts.items():
        for component, container in containers(chart):
            if component == "test":
                continue
            variables = environment(container)
            ours = {key for key in variables if key.startswith("PACELINE_")}
            assert ours <= known, (name, component)
            with monkeypatch.context() as patch:
                for key in ours:
                    patch.setenv(key, variables[key].get("value") or secret.get(key, "given"))
                patch.setenv("PACELINE_DATA_DIR", image["PACELINE_DATA_DIR"])
                settings = Settings()
            assert settings.database_url is not None
            assert settings.external_url is not None
            assert settings.served_over_tls
            # Servers listen on all addresses, for the Service; other processes do not.
            assert settings.host == ("0.0.0.0" if component == "api" else "127.0.0.1")  # noqa: S104
            # Only the migration, which makes the administrator's token valid, gets it.
            with_token = component == "migrate" and name != "store"
            assert (settings.admin_token_file is not None) is with_token, (name, component)


def test_settings_come_as_the_values_have_them(charts: dict[str, list[Manifest]]) -> None:
    for component, container in containers(charts["replicas"]):
        if component != "test":
            variables = environment(container)
            # Helm reads numbers as floats, and 4e+12 would be refused.
            assert variables["PACELINE_QUOTA_BYTES"]["value"] == "4000000000000"
            assert variables["PACELINE_PULSE_RECORD_SHARE"]["value"] == "0.01"
            assert variables["PACELINE_ALERT_APPRISE"]["value"] == "false"


def test_secrets_come_from_secrets_that_exist_and_to_who_needs_them(
    charts: dict[str, list[Manifest]],
) -> None:
    for name, chart in charts.items():
        assert of_kind(chart, "Secret") == []
        for component, container in containers(chart):
            for key, variable in environment(container).items():
                assert ("secretKeyRef" in variable.get("valueFrom", {})) is bool(
                    SECRET.search(key)
                ), (name, component, key)
    given = {
        component: {key for key in environment(container) if SECRET.search(key)}
        for component, container in containers(charts["store"])
    }
    for_all = {
        *("PACELINE_DATABASE_URL", "PACELINE_BROKER_URL", "PACELINE_SECRET_KEYS"),
        *("PACELINE_BLOB_ACCESS_KEY_ID", "PACELINE_BLOB_SECRET_ACCESS_KEY"),
    }
    assert given["worker"] == given["migrate"] == for_all
    assert given["api"] - for_all == {"PACELINE_METRICS_TOKEN", "PACELINE_OIDC_CLIENT_SECRET"}
    (api,) = (container for at, container in containers(charts["store"]) if at == "api")
    assert environment(api)["PACELINE_DATABASE_URL"]["valueFrom"] == {
        "secretKeyRef": {"name": "postgres-app", "key": "uri"}
    }


def test_the_migration_runs_before_anything_with_what_it_needs(
    charts: dict[str, list[Manifest]],
) -> None:
    chart = charts["gateway"]
    (job,) = of_kind(chart, "Job")
    hooks = {
        (manifest["kind"], manifest["metadata"]["name"]): manifest["metadata"]["annotations"]
        for manifest in chart
        if "pre-install" in manifest["metadata"].get("annotations", {}).get("helm.sh/hook", "")
    }

    assert set(hooks) == {
        *(("Job", "paceline-migrate"), ("NetworkPolicy", "paceline-migrate")),
        ("ServiceAccount", "paceline-migrate"),
    }
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "paceline-migrate"
    order = {kind: int(hook["helm.sh/hook-weight"]) for (kind, _), hook in hooks.items()}
    assert order["Job"] > max(order["NetworkPolicy"], order["ServiceAccount"])
    for hook in hooks.values():
        assert hook["helm.sh/hook"] == "pre-install,pre-upgrade"
        assert hook["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    # The migration is a hook before all manifests, so its configuration must not be a manifest.
    for _, container in containers(chart):
        assert "envFrom" not in container


def test_what_selects_pods_finds_those_of_one_component(
    charts: dict[str, list[Manifest]],
) -> None:
    chart = charts["gateway"]
    deployments = {
        manifest["metadata"]["name"]: manifest["spec"]["template"]["metadata"]["labels"]
        for manifest in (*of_kind(chart, "Deployment"), *of_kind(chart, "Job"))
    }
    selectors = {
        f"{manifest['kind']} {manifest['metadata']['name']}": labels
        for manifest in chart
        for labels in (
            manifest.get("spec", {}).get("selector", {}).get("matchLabels"),
            manifest.get("spec", {}).get("podSelector", {}).get("matchLabels"),
            manifest["spec"]["selector"] if manifest["kind"] == "Service" else None,
        )
        if labels
    }

    assert len(selectors) == 8
    for selector, labels in selectors.items():
        found = [name for name, of_pod in deployments.items() if labels.items() <= of_pod.items()]
        wanted = selector.rpartition(" ")[2]
        assert found == [f"{NAME}-api" if wanted == NAME else wanted], selector


def test_probes_ask_the_port_that_the_server_listens_on(
    charts: dict[str, list[Manifest]],
) -> None:
    port = Settings.model_fields["port"].default
    by_component = dict(containers(charts["minimal"]))
    api, worker = by_component["api"], by_component["worker"]
    (service,) = of_kind(charts["minimal"], "Service")

    assert api["ports"] == [{"name": "http", "containerPort": port, "protocol": "TCP"}]
    assert service["spec"]["ports"][0]["targetPort"] == "http"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = api[probe]["httpGet"]
        assert (asked["path"], asked["port"]) == ("/healthz", "http")
        # A loopback name, which is allowed with any setting of host names.
        assert asked["httpHeaders"] == [{"name": "Host", "value": "localhost"}]
    assert worker["readinessProbe"]["exec"]["command"] == ["python", "-m", "workers.health"]
    assert (ROOT / "workers" / "health.py").exists()
    # Workers need not restart if the database is unavailable.
    assert "livenessProbe" not in worker
    program, option, code, host, service_port = by_component["test"]["command"]
    assert (program, option) == ("python", "-c")
    compile(code, "ready", "exec")
    assert "/readyz" in code
    assert (host, int(service_port)) == (NAME, service["spec"]["ports"][0]["port"])


def test_what_is_scaled_by_another_has_no_number_of_its_own(
    charts: dict[str, list[Manifest]],
) -> None:
    numbers = {
        name: {
            manifest["metadata"]["name"]: manifest["spec"].get("replicas")
            for manifest in of_kind(chart, "Deployment")
        }
        for name, chart in charts.items()
    }

    assert numbers["minimal"] == {"paceline-api": 2, "paceline-worker": 2}
    assert numbers["replicas"] == {"paceline-api": None, "paceline-worker": None}
    assert numbers["store"] == {"paceline-api": 2, "paceline-worker": None}
    scaled = {
        scaler["spec"]["scaleTargetRef"]["name"]
        for scaler in of_kind(charts["replicas"], "HorizontalPodAutoscaler")
    }
    assert scaled == set(numbers["replicas"])


def test_workers_are_scaled_by_metrics_that_there_are(charts: dict[str, list[Manifest]]) -> None:
    (scaler,) = of_kind(charts["store"], "ScaledObject")
    page = (ROOT / "docs" / "operations.md").read_text()
    told = set(re.findall(r"`(paceline_\w+)`", page))

    queries = [trigger["metadata"]["query"] for trigger in scaler["spec"]["triggers"]]
    assert len(queries) == 2
    for query in queries:
        named = set(re.findall(r"\bpaceline_\w+", query))
        assert named, query
        assert named <= told, query
        assert query.count("(") == query.count(")"), query
        assert f'namespace="{NAMESPACE}"' in query
    # At least one worker, which runs the sweeper.
    assert scaler["spec"]["minReplicaCount"] >= 1


def test_the_chart_has_no_links_that_a_package_would_lose() -> None:
    files = list((ROOT / "deploy" / "helm" / "paceline").rglob("*"))
    assert {"operation.json", "training.json", "paceline.rules.yml"} <= {
        file.name for file in files
    }
    assert not [file for file in files if file.is_symlink()]


def test_rules_and_dashboards_are_those_of_their_folders(
    charts: dict[str, list[Manifest]],
) -> None:
    (rules,) = of_kind(charts["monitoring"], "PrometheusRule")
    maps = {
        name: text
        for manifest in of_kind(charts["monitoring"], "ConfigMap")
        for name, text in manifest["data"].items()
    }
    folder = ROOT / "deploy" / "grafana"

    assert rules["spec"] == yaml.safe_load(
        (ROOT / "deploy" / "prometheus" / "paceline.rules.yml").read_text()
    )
    assert {name: json.loads(text) for name, text in maps.items()} == {
        f"paceline-{path.name}": json.loads(path.read_text()) for path in folder.glob("*.json")
    }


def test_prometheus_shows_the_token_that_the_server_wants(
    charts: dict[str, list[Manifest]],
) -> None:
    (monitor,) = of_kind(charts["monitoring"], "ServiceMonitor")
    (api,) = (container for at, container in containers(charts["monitoring"]) if at == "api")
    (endpoint,) = monitor["spec"]["endpoints"]

    wanted = environment(api)["PACELINE_METRICS_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert endpoint["authorization"]["credentials"] == wanted
    assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")


def test_requests_come_in_under_the_host_that_people_call(
    charts: dict[str, list[Manifest]],
) -> None:
    (ingress,) = of_kind(charts["replicas"], "Ingress")
    (route,) = of_kind(charts["gateway"], "HTTPRoute")
    (service,) = of_kind(charts["gateway"], "Service")

    (rule,) = ingress["spec"]["rules"]
    assert rule["host"] == "paceline.example"
    assert rule["http"]["paths"][0]["backend"]["service"]["name"] == service["metadata"]["name"]
    assert ingress["spec"]["tls"] == [{"secretName": "paceline-tls", "hosts": [rule["host"]]}]
    assert route["spec"]["hostnames"] == [rule["host"]]
    assert route["spec"]["rules"][0]["backendRefs"] == [
        {"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}
    ]


def test_no_one_connects_to_a_worker_and_pods_connect_to_what_is_named(
    charts: dict[str, list[Manifest]],
) -> None:
    policies = {
        manifest["metadata"]["name"]: manifest["spec"]
        for manifest in of_kind(charts["gateway"], "NetworkPolicy")
    }

    assert set(policies) == {"paceline-api", "paceline-worker", "paceline-migrate"}
    for name, policy in policies.items():
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        dns, *others = policy["egress"]
        assert {port["port"] for port in dns["ports"]} == {53}
        assert len(others) == 2
        if name != "paceline-api":
            assert policy["ingress"] == []
    (allowed,) = policies["paceline-api"]["ingress"]
    assert allowed["ports"] == [{"port": "http", "protocol": "TCP"}]
    assert allowed["from"]


def test_the_image_is_that_of_the_version_or_the_digest(
    charts: dict[str, list[Manifest]],
) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (chart["version"], chart["appVersion"]) == (version, version)
    images = {
        name: {container["image"] for _, container in containers(of_values)}
        for name, of_values in charts.items()
    }
    assert images["minimal"] == {f"registry.example/paceline:{version}"}
    (by_digest,) = images["gateway"]
    assert by_digest.startswith("registry.example/paceline@sha256:")
