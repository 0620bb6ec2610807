"""``python -m paceline_client send``: send the shares in the spool to the server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paceline_client.sending import send_waiting
from paceline_client.spool import Spool, default_directory


def main() -> int:
    """Return 0 if no share is left."""
    parser = argparse.ArgumentParser(prog="python -m paceline_client")
    commands = parser.add_subparsers(dest="command", required=True)
    send = commands.add_parser("send", help="send the shares that wait in a spool")
    send.add_argument("server", help="http://paceline.example:8765")
    send.add_argument("--spool", type=Path, default=default_directory(), metavar="DIR")
    send.add_argument("--recorded-for", metavar="SERVER", help="the address that the job was given")
    given = parser.parse_args()
    done = send_waiting(
        Spool(given.spool), given.server, instead_of=given.recorded_for or given.server
    )
    print(f"{done.sent} sent, {done.left} left in {given.spool}")  # noqa: T201
    return int(done.left > 0)


if __name__ == "__main__":
    sys.exit(main())
