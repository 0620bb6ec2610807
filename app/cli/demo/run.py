"""`paceline demo`: an installation of its own with a synthetic fleet to look at."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from app.cli.demo.place import open_place, settings_of_demo
from app.cli.demo.sessions import send_demo_sessions
from app.run.supervisor import serve

if TYPE_CHECKING:
    from pathlib import Path

    from app.settings import Settings


def run_demo(settings: Settings, directory: Path | None, *, fresh: bool) -> None:
    """Serve the demo until SIGINT or SIGTERM; make its history where it is not there.

    Parameters
    ----------
    settings : Settings
        Of the environment and the command line. What they say of an installation's data is left
        alone.
    directory : Path, optional
        Where the demo keeps its data.
    fresh : bool
        Make the history anew.

    Raises
    ------
    InstanceRunningError, StartupError
        As of `open_place` and `serve`.
    """
    own, left_alone = settings_of_demo(settings, directory)
    if "log_level" not in own.model_fields_set:
        # A person reads along, and looks for the address.
        own = own.model_copy(update={"log_level": "warning"})
    place = open_place(own.data_dir, fresh=fresh)
    sys.stderr.write(f"The demo keeps its data in {place.directory}\n")
    if left_alone:
        sys.stderr.write(f"It does not use what {', '.join(left_alone)} names\n")
    until = place.told_until
    if until is not None:
        age_h = (datetime.now(UTC) - until).total_seconds() / 3600
        sys.stderr.write(
            f"Its history ends {age_h:.0f} h ago; `paceline demo --fresh` makes a new one\n"
        )
        serve(own)
        return

    def make(url: str) -> None:
        send_demo_sessions(url)
        place.tell(datetime.now(UTC))

    serve(own, after_start=make)
