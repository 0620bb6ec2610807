#!/usr/bin/env bash
# The client's own tests, those that need nothing but the standard library and NumPy, on other
# Pythons than that of `make test`: on those that are named, else on every one from 3.10 on that is
# here, by that name or under pyenv. Each gets an environment that is thrown away.
set -euo pipefail
cd "$(dirname "$0")/.."

pythons=("$@")
if [ "${#pythons[@]}" -eq 0 ]; then
    tested=$(.venv/bin/python -c 'import sys; print(sys.version_info.minor)' 2>/dev/null || true)
    for minor in 10 11 12 13 14; do
        [ "$minor" != "$tested" ] || continue
        for python in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"3.$minor".*/bin/python; do
            # A shim of pyenv may stand for a version that is not there.
            if "$python" -c "import ensurepip, venv" 2>/dev/null; then
                pythons+=("$python")
                break
            fi
        done
    done
fi

if [ "${#pythons[@]}" -eq 0 ]; then
    echo "The client is not tried on other Pythons: there is none from 3.10 on"
fi

environment=$(mktemp -d)
trap 'rm -rf "$environment"' EXIT
export PYTHONPYCACHEPREFIX="$environment/cache"
for python in "${pythons[@]}"; do
    echo "The client on $("$python" --version)"
    "$python" -m venv --clear "$environment"
    "$environment/bin/python" -m pip --quiet --disable-pip-version-check --no-input install pytest numpy
    "$environment/bin/python" -m compileall -q client/src
    PYTHONPATH=client/src:. "$environment/bin/python" -m pytest --quiet -c /dev/null --rootdir . \
        --confcutdir tests/unit/client --import-mode importlib -p no:cacheprovider \
        tests/unit/client/test_{delivery,ndtimeline,planned_gc,recorder,runs,spool}.py
done
