"""One more process of a server: ``python -m app.run.replica``, until SIGTERM.

It accepts connections on the socket of the process that started it.
"""

from __future__ import annotations

import socket
from pathlib import Path

from app.platform import processes as child
from app.platform.resources import answering, loading


def main() -> int:
    """Serve until SIGTERM; the configuration comes from the environment."""
    parser = child.options("app.run.replica", __doc__)
    parser.add_argument("--socket", type=int, required=True, help="descriptor of the listener")
    parser.add_argument("--directory", type=Path, required=True, help="which all processes share")
    parser.add_argument("--number", type=int, required=True, help="among them, from 0")
    parser.add_argument("--of", type=int, required=True, help="how many they are")
    arguments = child.asked(parser)
    with loading():
        from app.bootstrap import build  # noqa: PLC0415
        from app.platform import killable, telemetry  # noqa: PLC0415
        from app.platform.logs import configure_logging  # noqa: PLC0415
        from app.platform.resources import Place  # noqa: PLC0415
        from app.platform.settings import Settings  # noqa: PLC0415
        from app.run.application import create_app  # noqa: PLC0415
        from app.run.http import HttpServer  # noqa: PLC0415
        from app.sessions.body import PREPARATION, read_body  # noqa: PLC0415

    settings = Settings()
    configure_logging(json=settings.log_json, level=settings.log_level)
    telemetry.start("serve")
    stop = child.stop_on_signals()
    container = build(settings, application_name="paceline serve")
    place = Place(arguments.directory, arguments.number, arguments.of)
    listener = socket.socket(fileno=arguments.socket)
    server = HttpServer(create_app(container, place), listener)
    try:
        server.start(stop.is_set)
        killable.start(read_body, PREPARATION)
        answering()
        stop.wait()
    finally:
        server.stop()
        container.close()
        telemetry.stop()
    return 0


if __name__ == "__main__":
    child.run(main)
