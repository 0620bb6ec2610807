"""Grafana's dashboards and Prometheus' rules use existing metrics and labels."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import skip_or_fail
from tests.integration.api.web.test_health import add_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.api.conftest import Installation

ROOT: Final = Path(__file__).parents[4]
RULES: Final = ROOT / "deploy/prometheus/paceline.rules.yml"
DASHBOARDS: Final = sorted((ROOT / "deploy/grafana").glob("*.json"))
# Values for Grafana's variables.
VARIABLES: Final = {"$__rate_interval": "5m", "$project": ".*", "$job": ".*"}
SUFFIXES: Final = ("_total", "_bucket", "_count", "_sum")
# Names of labels in selectors and in groupings.
MATCHED: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
GROUPED: Final = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")


def asked_by_rules() -> dict[str, str]:
    """Return the expression of each alert."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def asked_by(dashboard: Path) -> Iterator[str]:
    """Yield the expressions of a dashboard, with values for its variables."""
    document = json.loads(dashboard.read_text())
    for panel in document["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for variable, value in VARIABLES.items():
                expression = expression.replace(variable, value)
            yield expression


def all_asked() -> list[str]:
    """Return every expression of rules and dashboards."""
    asked = [*asked_by_rules().values(), *(one for path in DASHBOARDS for one in asked_by(path))]
    assert len(asked) > 40
    return asked


def told(installation: Installation) -> tuple[set[str], set[str]]:
    """Return the names of the server's metrics and labels, as expressions use them."""
    names, labels = set(), {"le"}
    for family in text_string_to_metric_families(installation.client.get("/metrics").text):
        names |= {family.name, *(family.name + suffix for suffix in SUFFIXES)}
        labels |= {label for sample in family.samples for label in sample.labels}
    return names, labels


def test_every_metric_and_label_in_rules_and_dashboards_is_exposed(
    installation: Installation,
) -> None:
    add_worker(installation, "analysis", seen_s_ago=5)
    installation.post()
    installation.post(b"certainly no trace")
    installation.analyze_all()
    names, labels = told(installation)
    # Labels of jobs with a pulse, of which this server has none, and the label that a rule adds.
    labels |= {"training_job", "node", "gpu", "queue"}
    for expression in all_asked():
        asked = set(re.findall(r"\bpaceline_\w+", expression))
        assert asked, expression
        assert asked <= names, expression
        grouped = {
            label.strip()
            for names_of_labels in GROUPED.findall(expression)
            for label in names_of_labels.split(",")
        }
        assert set(MATCHED.findall(expression)) | grouped <= labels, expression


# The counters of a server's own process; every server exposes all other metrics, from the database.
OF_ONE_SERVER: Final = re.compile(
    r"paceline_(http_\w+|ingest_\w+|event_streams|spool_free_bytes)(?!\w)"
)
# A metric, or its increase, with the aggregation that is closest to it.
AGGREGATED: Final = re.compile(
    r"(\w+)(?:\s*by\s*\([^)]*\))?\s*\((?:(?:rate|increase|delta)\()?(paceline_\w+)"
)


def test_two_servers_double_no_figure() -> None:
    met = set()
    for expression in all_asked():
        for aggregation, metric in AGGREGATED.findall(expression):
            if not OF_ONE_SERVER.fullmatch(metric):
                assert aggregation in {"max", "min", "absent"}, expression
                met.add(metric)
    assert {"paceline_job_gpu_hours_lost_total", "paceline_worker_heartbeat_age_seconds"} <= met


def test_each_dashboard_can_be_imported() -> None:
    assert [path.name for path in DASHBOARDS] == ["operation.json", "training.json"]
    for path in DASHBOARDS:
        document = json.loads(path.read_text())
        # The importing Grafana assigns the id.
        assert document["id"] is None
        panels = document["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        assert {variable["name"] for variable in document["templating"]["list"]} >= {"datasource"}
        for panel in panels:
            place = panel["gridPos"]
            assert 0 <= place["x"] <= place["x"] + place["w"] <= 24
            if panel["type"] != "row":
                assert panel["datasource"]["uid"] == "${datasource}"
        places = [panel["gridPos"] for panel in panels]
        assert not any(
            one["x"] < other["x"] + other["w"]
            and other["x"] < one["x"] + one["w"]
            and one["y"] < other["y"] + other["h"]
            and other["y"] < one["y"] + one["h"]
            for index, one in enumerate(places)
            for other in places[:index]
        )


def test_the_documentation_says_what_to_do_for_every_alert() -> None:
    text = (ROOT / "docs/operations.md").read_text()
    assert set(re.findall(r"^\| `(Paceline\w+)`", text, re.MULTILINE)) == set(asked_by_rules())


def promtool(*arguments: str | Path) -> str:
    """Run promtool, and return its output on success."""
    if shutil.which("promtool") is None:
        skip_or_fail("there is no promtool: install the package prometheus")
    done = subprocess.run(  # noqa: S603 - our own arguments
        ["promtool", *map(str, arguments)],  # noqa: S607 - the system's
        capture_output=True,
        text=True,
        check=False,
        cwd=RULES.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rules_fire_when_they_should_and_else_not() -> None:
    assert f"{len(asked_by_rules())} rules found" in promtool("check", "rules", RULES)
    assert "SUCCESS" in promtool("test", "rules", RULES.with_suffix(".test.yml"))


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_prometheus_reads_every_expression_of_a_dashboard(dashboard: Path, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(asked_by(dashboard))
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", file)
