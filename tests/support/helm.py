"""The Helm chart, rendered by helm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from tests.conftest import skip_or_fail

CHART: Final = Path(__file__).parents[2] / "deploy" / "helm" / "paceline"
# Files of values by name, each an intended use of the chart.
VALUES: Final = {
    path.name.removesuffix("-values.yaml"): path
    for path in sorted((CHART / "ci").glob("*-values.yaml"))
}
# The parts of a rendered chart that differ from release to release.
NAME: Final = "paceline"
NAMESPACE: Final = "training"
# A manifest is a YAML document of any kind.
Manifest = dict[str, Any]
Done = subprocess.CompletedProcess[str]


def helm(*arguments: str | Path) -> Done:
    """Run helm, which `make install-helm` installs next to the interpreter, without a cluster."""
    found = shutil.which("helm") or shutil.which("helm", path=str(Path(sys.executable).parent))
    if found is None:
        skip_or_fail("there is no helm: make install-helm, or put one on PATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELM_")}
    return subprocess.run(  # noqa: S603 - found on PATH
        [found, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        env=kept | {"KUBECONFIG": os.devnull},
    )


def template(*values: str | Path) -> Done:
    """Render the chart with files of values and single assignments."""
    options: list[str | Path] = []
    for value in values:
        options += ["--values" if isinstance(value, Path) else "--set", value]
    return helm("template", NAME, CHART, "--namespace", NAMESPACE, *options)


def rendered(*values: str | Path) -> list[Manifest]:
    """Return the manifests of the chart, rendered with values that it accepts."""
    done = template(*values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Yield the component and the specification of each pod."""
    for manifest in manifests:
        component = manifest["metadata"]["labels"]["app.kubernetes.io/component"]
        if manifest["kind"] == "Pod":
            yield component, manifest["spec"]
        elif manifest["kind"] in ("Deployment", "Job"):
            yield component, manifest["spec"]["template"]["spec"]


def containers(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Yield the component and each container of its pods."""
    for component, pod in pods(manifests):
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            yield component, container


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    """Return the manifests of a kind."""
    return [manifest for manifest in manifests if manifest["kind"] == kind]
