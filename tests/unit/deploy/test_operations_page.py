"""Every command of the operations page is tested, and the systemd services agree with the page."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from app.platform.settings import Settings
from tests.conftest import skip_or_fail
from tests.support.command import paceline

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs" / "operations.md"
UNITS: Final = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
PROGRAM: Final = "/opt/paceline/bin/paceline"

_CHART: Final = "tests/unit/deploy/test_chart.py::test_every_manifest_fits_the_schema_of_its_kind"
_DOCTOR: Final = (
    "tests/integration/installation/test_surroundings.py::test_correct_surroundings_are_ready"
)
_ANALYZE: Final = "tests/integration/retention/test_api.py::test_the_commands_do_the_same"
_RULES: Final = (
    "tests/integration/retention/test_command.py::test_retention_rules_are_shown_and_changed"
)
_BLOBS: Final = (
    "tests/integration/platform/blobs/test_processes.py"
    "::test_the_command_line_moves_checks_and_backs_up"
)
_BACKUP: Final = (
    "tests/integration/retention/test_backup.py::test_a_restored_installation_gives_the_same_report"
)
_UNITS: Final = "tests/unit/deploy/test_operations_page.py::test_systemd_finds_nothing_to_blame"
_CI: Final = ".github/workflows/ci.yml"
_BY_HAND: Final = "by hand on 2026-11-27"
# By the beginning of a command, of which the longest counts: the test that runs it, the public CI,
# or the date of a trial by hand, as on the page.
TRIED: Final = {
    "cp .env.example": _CI,
    "docker compose up": _CI,
    "docker compose ps": _CI,
    "docker compose run": "tests/unit/test_deployment_files.py"
    "::test_the_commands_of_the_services_exist",
    "docker compose exec": _BACKUP,
    "python3 -m venv": _BY_HAND,
    "/opt/paceline/bin/pip": _BY_HAND,
    "useradd": _BY_HAND,
    "install ": _BY_HAND,
    "systemctl": _UNITS,
    "set -a": _BY_HAND,
    f"{PROGRAM} user create": "tests/integration/access/test_command.py"
    "::test_a_user_signs_in_with_the_password_that_was_given",
    f"{PROGRAM} doctor": _DOCTOR,
    "paceline doctor": _DOCTOR,
    "cat > paceline.env": _CHART,
    "kubectl create namespace": _BY_HAND,
    "kubectl --namespace paceline create": _BY_HAND,
    "kubectl --namespace paceline exec": _DOCTOR,
    "helm": _CHART,
    "OTEL_": "tests/integration/installation/test_telemetry.py"
    "::test_variables_of_the_environment_are_used_or_named_as_unused",
    "curl -s http://127.0.0.1:8765/readyz": _CI,
    "python -m workers.health": "tests/integration/test_worker_health.py"
    "::test_the_command_that_the_container_runs_says_so_by_its_status",
    "paceline retention": _RULES,
    "paceline retention run": "tests/integration/retention/test_command.py"
    "::test_a_run_deletes_rows_beyond_the_rules_with_their_bytes",
    "PACELINE_BLOB_": _BLOBS,
    "AWS_": _BLOBS,
    "paceline blobs": _BLOBS,
    "paceline session analyze": _ANALYZE,
    "paceline backup": _BACKUP,
    "paceline restore": _BACKUP,
}
# The tasks of an operator.
TASKS: Final = ("install", "upgrade", "size", "back up", "monitor", "secure", "debug")


def commands() -> list[str]:
    """Return the first line of each command in the page's blocks."""
    found = []
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        shown = re.sub(r"<<END\n.*?^END\n", "\n", block, flags=re.MULTILINE | re.DOTALL)
        found += [line.strip() for line in shown.splitlines() if line.strip()]
    return found


def how(command: str) -> str | None:
    """Return how a command is tested; None if the table does not contain it."""
    known = [beginning for beginning in TRIED if command.startswith(beginning)]
    return TRIED[max(known, key=len)] if known else None


def test_each_command_of_the_page_is_tried() -> None:
    listed = commands()
    assert len(listed) > 30
    assert [command for command in listed if how(command) is None] == []
    unused = [
        beginning
        for beginning in TRIED
        if not any(command.startswith(beginning) for command in listed)
    ]
    assert unused == []


def test_the_tests_of_the_steps_exist() -> None:
    page = PAGE.read_text()
    for tried in set(TRIED.values()):
        if tried == _BY_HAND:
            assert tried in page
            continue
        path, _, name = tried.partition("::")
        text = (ROOT / path).read_text()
        assert f"def {name}(" in text if name else "docker compose up" in text


def test_every_task_is_in_the_table() -> None:
    table = PAGE.read_text().partition("## What runs")[0]
    assert [task for task in TASKS if not re.search(rf"^\| {task}", table, re.MULTILINE)] == []


def service_of(unit: Path) -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys have capitals
    parser.read(unit)
    return parser["Service"]


def test_the_commands_and_settings_of_the_services_exist() -> None:
    assert [unit.stem for unit in UNITS] == [
        "paceline-migrate",
        "paceline-serve",
        "paceline-worker",
    ]
    for unit in UNITS:
        service = service_of(unit)
        program, *arguments = service["ExecStart"].split()
        assert program == PROGRAM
        shown = paceline(*arguments, "--help")
        assert shown.returncode == 0, shown.stderr
        assert (service["User"], service["NoNewPrivileges"]) == ("paceline", "true")
        names = re.findall(r"\bPACELINE_([A-Z_]+)=", service["Environment"])
        assert {name.lower() for name in names} <= set(Settings.model_fields)


def test_the_settings_on_the_page_are_valid() -> None:
    [block] = re.findall(r"^```ini\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    # Parsed like systemd does, where a comment after a value would be part of the value.
    pairs = [line.partition("=") for line in block.splitlines() if not line.startswith("#")]
    settings = {name.removeprefix("PACELINE_").lower(): value for name, _, value in pairs}
    assert len(settings) > 4
    assert set(settings) <= set(Settings.model_fields)
    # The page has no valid keys: each installation generates its own.
    used = Settings(**settings | {"secret_keys": ""})
    assert used.require_sign_in
    assert used.database_url == settings["database_url"]


def test_systemd_finds_nothing_to_blame(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        skip_or_fail("there is no systemd-analyze")
    copies = []
    for unit in UNITS:
        copy = tmp_path / unit.name
        # With the interpreter in place of the installed program.
        copy.write_text(unit.read_text().replace(PROGRAM, sys.executable))
        copies.append(str(copy))
    verified = run(program, "verify", "--man=no", *copies)
    # systemd may report faults in units of the system itself.
    ours = [line for line in verified.stderr.splitlines() if "paceline" in line]
    assert (verified.returncode, ours) == (0, [])
    for path in copies:
        # An exposure of at most 2.0 of 10; a service without hardening has 9.6.
        rated = run(program, "security", "--offline=true", "--threshold=20", path)
        assert rated.returncode == 0, rated.stdout


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_services_start_in_any_order_and_a_migration_stops_none(unit: Path) -> None:
    read = configparser.RawConfigParser(strict=False)
    read.read(unit)
    assert "Requires" not in read["Unit"]
    # The database, or the schema, may be there later.
    assert read["Service"]["Restart"] in {"always", "on-failure"}
    assert read["Unit"]["StartLimitIntervalSec"] == "0"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_services_end_as_their_commands_do(unit: Path) -> None:
    service = service_of(unit)
    if service["Type"] == "oneshot":
        return
    assert service["KillMode"] == "mixed", "children are ended by their parent"
    assert int(service["TimeoutStopSec"]) >= 30
