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

environments=$(mktemp -d)
trap 'rm -rf "$environments"' EXIT

# With one Python; the second argument names the folder of its environment.
try_on() {
    echo "The client on $("$1" --version)"
    export PYTHONPYCACHEPREFIX="$2/cache"
    "$1" -m venv "$2"
    "$2/bin/python" -m pip --quiet --disable-pip-version-check --no-input install pytest numpy
    "$2/bin/python" -m compileall -q client/src
    PYTHONPATH=client/src:. "$2/bin/python" -m pytest --quiet -c /dev/null --rootdir . \
        --confcutdir tests/unit/client --import-mode importlib -p no:cacheprovider \
        tests/unit/client/test_{delivery,environment,ndtimeline,planned_gc,recorder,spool}.py \
        tests/unit/client/pulse/test_{requests,sender}.py
}

# All at once, since each waits for the package index first; what they say stays together.
running=()
for python in "${pythons[@]}"; do
    folder="$environments/${#running[@]}"
    (set -e; try_on "$python" "$folder") >"$folder.words" 2>&1 &
    running+=($!)
done
status=0
for number in "${!running[@]}"; do
    wait "${running[$number]}" || status=$?
    cat "$environments/$number.words"
done
exit "$status"
