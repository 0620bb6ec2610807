"""Where the demo keeps its data: never where an installation keeps its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from app.db.embedded.account import is_root
from app.db.embedded.binaries import make_directories
from app.db.embedded.emptying import empty_instance, has_cluster
from app.errors import StartupError
from app.settings import default_data_dir

if TYPE_CHECKING:
    from app.settings import Settings

# Settings that name where an installation keeps its data, or the keys to them. The demo has none of
# these: it leaves what they name alone.
OF_INSTALLATIONS: Final = (
    "database_url",
    "broker_url",
    "data_dir",
    "blob_url",
    "blob_endpoint",
    "blob_region",
    "blob_access_key_id",
    "blob_secret_access_key",
    "secret_keys",
    "secret_key_file",
)
# Says that a data directory is the demo's, and until when its history goes.
MARK: Final = "demo.json"
_SCHEMA: Final = "paceline.demo/1"


@dataclass(frozen=True, slots=True)
class Place:
    """A data directory of the demo."""

    directory: Path

    @property
    def told_until(self) -> datetime | None:
        """Return the end of the history that is there whole; None where it is not.

        Raises
        ------
        StartupError
            The mark cannot be read.
        """
        path = self.directory / MARK
        try:
            until = json.loads(path.read_text())["until"]
            return None if until is None else datetime.fromisoformat(until)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StartupError(f"Cannot read {path}: {error}") from error

    def tell(self, until: datetime | None) -> None:
        """Note until when the history is there whole; None: it is not.

        Raises
        ------
        StartupError
            The mark cannot be written.
        """
        document = {"schema": _SCHEMA, "until": None if until is None else until.isoformat()}
        path = self.directory / MARK
        try:
            part = path.with_suffix(".part")
            part.write_text(json.dumps(document) + "\n")
            part.replace(path)
        except OSError as error:
            raise StartupError(f"Cannot write {path}: {error}") from error


def default_demo_dir() -> Path:
    """Return where the demo keeps its data: next to the data directory of an installation."""
    theirs = default_data_dir()
    return theirs.with_name("demo" if theirs.name == "data" else f"{theirs.name}-demo")


def settings_of_demo(settings: Settings, directory: Path | None) -> tuple[Settings, list[str]]:
    """Return the demo's settings, and the variables of an installation that they leave out.

    Parameters
    ----------
    settings : Settings
        Of the environment.
    directory : Path, optional
        Where the demo is to keep its data.
    """
    defaults = type(settings).model_construct()
    given = [name for name in OF_INSTALLATIONS if name in settings.model_fields_set]
    own = {name: getattr(defaults, name) for name in OF_INSTALLATIONS}
    own["data_dir"] = default_demo_dir() if directory is None else directory
    return settings.model_copy(update=own), [f"PACELINE_{name.upper()}" for name in given]


def open_place(directory: Path, *, fresh: bool) -> Place:
    """Take a data directory for the demo; make it empty where its history is not whole.

    Parameters
    ----------
    fresh : bool
        Make it empty in any case.

    Raises
    ------
    InstanceRunningError
        A demo runs there.
    StartupError
        It holds the data of an installation, or cannot be used.
    """
    if has_cluster(directory) and not is_demo(directory):
        raise StartupError(
            f"{directory} holds the data of an installation. The demo keeps its own apart: leave "
            "out --data-dir, or name another directory."
        )
    place = Place(directory)
    if not is_demo(directory):
        try:
            make_directories(directory, 0o711 if is_root() else 0o700)
        except OSError as error:
            raise StartupError(f"Cannot create the demo's directory: {error}") from error
        place.tell(None)
    elif fresh or place.told_until is None:
        empty_instance(directory, keep=(MARK,), first=lambda: place.tell(None))
    return place


def is_demo(directory: Path) -> bool:
    """Return whether a data directory is the demo's."""
    return (directory / MARK).exists()


def refuse_demo(settings: Settings) -> None:
    """Refuse to serve the demo's data as an installation's own.

    Raises
    ------
    StartupError
    """
    if settings.database_url is None and is_demo(settings.data_dir):
        raise StartupError(
            f"{settings.data_dir} holds the data of the demo. Look at it with `paceline demo`, and "
            "give the installation another data directory."
        )
