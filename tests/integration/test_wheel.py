"""The wheel, installed without the repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import httpx
import pytest

from app.cli.synthetic import write_fleet
from app.platform.database import migrate
from tests.support.nightly import by_night
from tests.support.processes import descendants, wait_until_gone
from tests.support.waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[2]
# Environment variables that an installer needs, without those of this environment.
KEPT = ("PATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "UV_DEFAULT_INDEX")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel, built with the installed packages."""
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(  # noqa: S603 - our own argument list
        [
            *(*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", target),
            *(ROOT / "client", ROOT),
        ],
        check=True,
        cwd=target,
    )
    [built] = target.glob("paceline-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the installed wheel, and the client that it requires."""
    target = tmp_path_factory.mktemp("installed")
    (client,) = wheel.parent.glob("paceline_client-*.whl")
    subprocess.run(  # noqa: S603 - our own argument list
        [*PIP, "install", "--no-deps", "--no-index", "--target", target, client, wheel], check=True
    )
    return target


def environment(installed: Path) -> dict[str, str]:
    """Return an environment in which the wheel and its dependencies can be imported.

    Without `site`, no link leads to the repository; dependencies are those of this environment.
    """
    packages = (installed, sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, packages)),
        # Compiling the loops takes ten seconds, and is tested elsewhere.
        "NUMBA_DISABLE_JIT": "1",
    }


def python(installed: Path, *arguments: str | Path) -> str:
    """Run Python with the wheel and its dependencies, and return the output."""
    done = subprocess.run(  # noqa: S603 - our own argument list
        [sys.executable, "-S", "-P", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=installed,
        env=environment(installed),
    )
    return done.stdout


def files(names: Iterable[str]) -> set[str]:
    return {
        name
        for name in names
        if PurePosixPath(name).parts[0] in ("app", "workers", "migrations", "frontend")
        and "__pycache__" not in name
        # The sources of the documentation's theme are left out; the built site is checked
        # elsewhere.
        and not name.startswith(("frontend/docs/", "frontend/site/"))
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

    # The glossary of docs/, for tooltips on pages.
    assert files(names) == files(there) | {"frontend/glossary.md"}
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


# Creating the server connects to nothing.
PARTS = """
import app, migrations, workers.child
from app.bootstrap import build
from app.web.assets import STATIC_DIR
from app.web.pages import TEMPLATES_DIR
from app.platform.database import migrate
from app.platform.settings import Settings
from app.run.application import create_app

create_app(build(Settings(database_url="postgresql+psycopg://unknown@127.0.0.1:1/none")))
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


@contextmanager
def demo(command: Sequence[str], directory: Path, env: Mapping[str, str]) -> Iterator[Path]:
    """Run ``paceline demo`` of the wheel while the context lasts; yield its output file."""
    words = directory / "words"
    with words.open("wb") as written:
        process = subprocess.Popen(  # noqa: S603 - our own argument list
            [*command, "demo", "--port", "0", "--data-dir", str(directory / "data")],
            cwd=directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
        )
    try:
        yield words
    finally:
        running = descendants(process.pid)
        process.terminate()
        try:
            process.wait(LIMIT_S)
        finally:
            process.kill()
            wait_until_gone(running)


def shows_its_demo(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Check that a wheel's demo answers with its own templates, migrations and static files."""
    # PostgreSQL runs as another account than root, which may not enter pytest's directories.
    with tempfile.TemporaryDirectory(prefix="paceline-wheel-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        with demo(command, directory, env) as words:
            url = wait_for(lambda: announced(words), "announcement")
            with httpx.Client(base_url=url) as client:
                wait_for(lambda: client.get("/api/v1/sessions").json()["sessions"], "a session")
                page = client.get("/")
                assert page.status_code == 200
                assert "<h1>" in page.text
                links = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text)
                assert len(links) >= 4
                assert {client.get(link).status_code for link in links} == {200}


def announced(words: Path) -> str:
    """Return the address in the program's output; empty if there is none yet."""
    lines = [line for line in words.read_text().splitlines() if "is ready: " in line]
    return lines[-1].rpartition(" ")[2].rstrip("/") if lines else ""


@by_night
def test_the_demo_runs_from_the_wheel(installed: Path) -> None:
    command = (sys.executable, "-S", "-P", str(installed / "bin" / "paceline"))
    shows_its_demo(command, environment(installed))


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield an empty folder that the account of PostgreSQL may enter as well."""
    with tempfile.TemporaryDirectory(prefix="paceline-home-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@by_night
def test_uv_installs_it_in_an_environment_of_its_own(wheel: Path, home: Path) -> None:
    commands = home / "bin"
    env = {name: os.environ[name] for name in KEPT if name in os.environ} | {
        "HOME": str(home),
        "UV_TOOL_DIR": str(home / "tools"),
        "UV_TOOL_BIN_DIR": str(commands),
        "UV_CACHE_DIR": str(home / "cache"),
        # Compiling the loops takes ten seconds, and is tested elsewhere.
        "NUMBA_DISABLE_JIT": "1",
    }
    subprocess.run(  # noqa: S603 - our own argument list
        [
            *(sys.executable, "-m", "uv", "tool", "install", "--quiet", "--no-config"),
            # The locked versions, so that a newer dependency cannot fail the test.
            *("--python", sys.executable, "--constraints", ROOT / "requirements" / "runtime.txt"),
            *("--find-links", wheel.parent, f"paceline[server,embedded] @ {wheel.as_uri()}"),
        ],
        check=True,
        cwd=home,
        env=env,
    )
    paceline = str(commands / "paceline")
    [written] = write_fleet(1, home, seed=1)
    analyzed = subprocess.run(  # noqa: S603 - our own argument list
        [paceline, "analyze", written.trace, "--meta", written.meta, "--json"],
        check=True,
        stdout=subprocess.PIPE,
        cwd=home,
        env=env,
    )
    assert json.loads(analyzed.stdout)["schema"] == "paceline.report/1"
    shows_its_demo([paceline], env)
