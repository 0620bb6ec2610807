"""Logging: one line for each event on standard error, as JSON or as text for people."""

from __future__ import annotations

import logging.config
import sys
import threading
from types import TracebackType

import structlog
from structlog.typing import Processor

from app.platform.telemetry import with_ids


def configure_logging(*, json: bool, level: str) -> None:
    """Set up structlog, and the standard library's loggers with the same output.

    Standard output is reserved for results.

    Parameters
    ----------
    json : bool
        One JSON object a line, for a log collector; otherwise colored text.
    level : str
        Lowest level that is written: ``debug``, ``info``, ``warning``, ``error``.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        with_ids,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    logging.config.dictConfig(
        {
            "version": 1,
            # Modules create their loggers on import, before this call; these loggers must keep
            # working.
            "disable_existing_loggers": False,
            "formatters": {
                "structlog": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "foreign_pre_chain": shared,
                    "processors": [
                        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                        *_renderers(json=json),
                    ],
                }
            },
            "handlers": {
                "stderr": {
                    "class": "logging.StreamHandler",
                    "stream": "ext://sys.stderr",
                    "formatter": "structlog",
                }
            },
            "root": {"handlers": ["stderr"], "level": level.upper()},
            # The logger of multiprocessing, which the process pool uses, does not propagate to the
            # root.
            "loggers": {"multiprocessing": {"handlers": ["stderr"], "propagate": False}},
        }
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    if json:
        _log_what_python_says()


def _log_what_python_says() -> None:
    """Log Python's warnings and unhandled exceptions."""
    log = structlog.get_logger("python")
    logging.captureWarnings(capture=True)

    def unhandled(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        log.critical("unhandled error", exc_info=(kind, error, traceback))

    def unhandled_in_thread(said: threading.ExceptHookArgs) -> None:
        if said.exc_value is not None:
            unhandled(said.exc_type, said.exc_value, said.exc_traceback)

    sys.excepthook = unhandled
    threading.excepthook = unhandled_in_thread


def log_of_a_command(*, json: bool, level: str) -> None:
    """Set up structlog for a command of this process, with output to the current standard error.

    Parameters
    ----------
    json, level
        As of `configure_logging`.
    """
    # The default of structlog is standard output.
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_renderers(json=json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def _renderers(*, json: bool) -> list[Processor]:
    if json:
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            # The default formatter prints the values of local variables, which are long and may be
            # secret.
            exception_formatter=structlog.dev.plain_traceback,
        )
    ]
