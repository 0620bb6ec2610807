"""A process that runs the embedded database: the parent that tests stop and kill.

    python -m tests.support.embedded_parent [--durable] [--bin-dir DIR] DATA_DIR

Prints ``{"pid": …}`` when the database answers, then runs each line of its standard input as SQL
and prints the rows as JSON; exits normally at the end of the input.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import psycopg

from app.platform.embedded.server import EmbeddedPostgres


def _say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the database until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--bin-dir", type=Path)
    parser.add_argument("--durable", action="store_true")
    options = vars(parser.parse_args())
    with EmbeddedPostgres(options.pop("data_dir"), **options) as postgres:
        url = postgres.url.replace("postgresql+psycopg:", "postgresql:")
        with psycopg.connect(url, autocommit=True) as connection:
            _say({"pid": postgres.pid})
            for statement in sys.stdin:
                cursor = connection.execute(statement.encode())
                _say(cursor.fetchall() if cursor.description else [])


if __name__ == "__main__":
    main()
