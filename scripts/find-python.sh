#!/bin/sh
# Print the first interpreter that can make Paceline's virtual environment.
#
# PYTHON=/path/to/python overrides the search. Exits 1 with advice when there is none.
set -eu

recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
makes_venvs() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

without_venv=
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
    # Not only on PATH: a version manager's shim may refuse to run.
    recent "$candidate" || continue
    if makes_venvs "$candidate"; then
        echo "$candidate"
        exit 0
    fi
    without_venv=${without_venv:-$candidate}
done

if [ -n "$without_venv" ]; then
    version=$("$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "$without_venv is Python $version, but it cannot make virtual environments: its venv and" >&2
    echo "ensurepip modules are packaged apart. Install them, then run make again:" >&2
    echo "  Debian, Ubuntu: apt-get install python$version-venv" >&2
    echo "  openSUSE: zypper install python${version%.*}${version#*.}-pip" >&2
else
    echo "Paceline needs Python 3.11 or later, and none was found on PATH." >&2
    echo "  Debian 12, Ubuntu 24.04 and later: apt-get install python3 python3-venv" >&2
    echo "  Fedora: dnf install python3    macOS: brew install python" >&2
    echo "To use one that is elsewhere: make install PYTHON=/path/to/python3" >&2
fi
exit 1
