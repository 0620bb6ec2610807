"""Runs the project's Python as an unprivileged account, for tests that run as root.

A checkout, its virtual environment or the interpreter is often below root's closed home directory.
The files that the account needs are linked (or copied from another file system) into a directory
that it can read, together with the compiled files of Python and numba: without these, every start
would compile for seconds.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ACCOUNT = "nobody"
_REPOSITORY = Path(__file__).parents[2]
_PARTS = ("app", "client/src", "workers", "migrations", "frontend", "docs", "tests/support")


class User:
    """A user who can start the project's Python.

    Parameters
    ----------
    python : Path
        The interpreter; that of `install` for the plain user.
    home : Path
        A directory of the user, which every account may enter.
    account : struct_passwd, optional
        The plain user's entry; by default the present user.
    """

    def __init__(self, python: Path, home: Path, account: pwd.struct_passwd | None) -> None:
        self.home = home
        self._python = python
        self._account = account

    def popen(
        self,
        *arguments: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        **options: Any,  # noqa: ANN401 - those of Popen
    ) -> subprocess.Popen[str]:
        """Start the interpreter with `arguments`; `options` are those of `subprocess.Popen`."""
        if self._account is None:
            options |= {"cwd": _REPOSITORY, "env": os.environ | dict(environment)}
        else:
            options |= {
                "cwd": "/",
                "env": self._environment() | dict(environment),
                "user": self._account.pw_uid,
                "group": self._account.pw_gid,
                "extra_groups": [],
            }
        return subprocess.Popen(  # noqa: S603 - the test's own
            [self._python, *arguments], text=True, **options
        )

    def _environment(self) -> dict[str, str]:
        prefix = self._python.parents[1]
        parts = ("repository", "repository/client/src", "site-packages")
        return {
            "HOME": str(self.home),
            "TMPDIR": tempfile.gettempdir(),
            "PATH": os.environ.get("PATH", os.defpath),
            "LD_LIBRARY_PATH": str(prefix / "lib"),
            "PYTHONPATH": os.pathsep.join(str(prefix.parent / part) for part in parts),
            "PYTHONDONTWRITEBYTECODE": "1",
        }


def account() -> pwd.struct_passwd:
    """Return the entry of the unprivileged account, which exists on every Unix."""
    return pwd.getpwnam(ACCOUNT)


def install(target: Path) -> Path:
    """Make interpreter, packages and project readable below `target`; return the interpreter."""
    target.chmod(0o755)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix = target / "python"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib").mkdir()
    python = prefix / "bin" / version
    _link(str(Path(sys.executable).resolve()), str(python))
    _link_tree(
        Path(sysconfig.get_path("stdlib")),
        prefix / "lib" / version,
        ("site-packages", "dist-packages", "test", "idlelib"),
    )
    library = Path(str(sysconfig.get_config_var("LIBDIR")))
    for shared in library.glob(f"lib{version}*.so*"):
        _link(str(shared.resolve()), str(prefix / "lib" / shared.name))
    _link_tree(Path(sysconfig.get_path("purelib")), target / "site-packages")
    for part in _PARTS:
        _link_tree(_REPOSITORY / part, target / "repository" / part)
    for directory in (target, *(path for path in target.rglob("*") if path.is_dir())):
        directory.chmod(0o755)
    # The account may write caches: the first start then compiles for all, and numba never changes a
    # file in place.
    for directory in (target / "repository" / "app").rglob("__pycache__"):
        directory.chmod(0o777)
    return python


def _link_tree(source: Path, target: Path, without: tuple[str, ...] = ()) -> None:
    if source.is_dir():
        shutil.copytree(
            source, target, copy_function=_link, ignore=shutil.ignore_patterns(*without)
        )


def _link(source: str, target: str) -> None:
    readable = os.stat(source).st_mode & 0o004  # noqa: PTH116 - called for 20,000 files
    if readable:
        try:
            os.link(source, target)
        except OSError:  # another file system; the time says whether what is compiled still fits
            shutil.copy2(source, target)
    else:
        shutil.copy2(source, target)
        os.chmod(target, 0o755)  # noqa: PTH101, S103 - a copy of the project's own
