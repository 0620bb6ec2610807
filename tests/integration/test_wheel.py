"""The wheel, installed where the repository is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from app.cli.synth import write_fleet
from app.db import migrate

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel, built with what is installed."""
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(  # noqa: S603 - our own argument list
        [*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", target, ROOT],
        check=True,
        cwd=target,
    )
    [built] = target.glob("paceline-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the wheel is installed, alone."""
    target = tmp_path_factory.mktemp("installed")
    subprocess.run(  # noqa: S603 - our own argument list
        [*PIP, "install", "--no-deps", "--no-index", "--target", target, wheel], check=True
    )
    return target


def python(installed: Path, *arguments: str | Path) -> str:
    """Run Python with the wheel and what it needs, and return what it prints.

    Without `site` no link leads to the repository; the packages it takes are the environment's.
    """
    packages = (installed, sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    done = subprocess.run(  # noqa: S603 - our own argument list
        [sys.executable, "-S", "-P", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=installed,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(map(str, packages)),
            # The loops are the same, and take ten seconds to compile.
            "NUMBA_DISABLE_JIT": "1",
        },
    )
    return done.stdout


def files(names: Iterable[str]) -> set[str]:
    return {
        name
        for name in names
        if PurePosixPath(name).parts[0] in ("app", "workers", "migrations", "frontend")
        and "__pycache__" not in name
    }


def test_it_has_every_file_of_the_program(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    ).stdout.splitlines()
    there = {name for name in listed if (ROOT / name).exists()}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    assert files(names) == files(there)
    top = {PurePosixPath(name).parts[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {
        "app",
        "frontend",
        "migrations",
        "workers",
    }


def test_the_installed_command_analyzes_a_trace(installed: Path, tmp_path: Path) -> None:
    paceline = installed / "bin" / "paceline"
    assert "analyze" in python(installed, paceline, "--help")

    [written] = write_fleet(1, tmp_path, seed=1)
    report = json.loads(
        python(installed, paceline, "analyze", written.trace, "--meta", written.meta, "--json")
    )
    assert report["schema"] == "paceline.report/1"
    truth = json.loads(written.truth.read_text())
    assert report["slowdown"] == pytest.approx(truth["slowdown"], rel=0.05)


# Nothing is connected to before the first request.
PARTS = """
import app, migrations, workers.child
from app.bootstrap import build
from app.dashboard.look.assets import STATIC_DIR
from app.dashboard.pages import TEMPLATES_DIR
from app.db import migrate
from app.settings import Settings
from app.web import create_app

create_app(build(Settings(database_url="postgresql+psycopg://nobody@127.0.0.1:1/none")))
for path in (app.__file__, workers.child.__file__, STATIC_DIR, TEMPLATES_DIR):
    print(path)
print(migrate.expected_revision())
"""


def test_the_installed_program_finds_its_own_pages_workers_and_migrations(installed: Path) -> None:
    *places, head = python(installed, "-c", PARTS).splitlines()

    assert len(places) == 4
    assert all(Path(place).is_relative_to(installed) for place in places)
    assert all(Path(place).exists() for place in places)
    assert head == migrate.expected_revision()
