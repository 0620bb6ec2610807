#!/bin/sh
# The scripts of the pages: style, types and unit tests, all three at once. `make js` runs it with
# what it needs.
set -u
cd "$(dirname "$0")/.."
bin=node_modules/.bin
output=$(mktemp -d)
trap 'rm -rf "$output"' EXIT

check() {
    name=$1
    shift
    "$@" >"$output/$name" 2>&1 &
    eval "$name=\$!"
}

check lint "$bin/biome" lint --error-on-warnings
check types "$bin/tsc" --project tests/js/tsconfig.json
check strict "$bin/tsc" --project tests/js/tsconfig.strict.json
# Files by name: what a folder means to node differs between its versions.
# shellcheck disable=SC2046 # no name has a space
check units node --test --test-reporter=spec $(find tests/js -name '*.test.js')

failed=0
for name in lint types strict units; do
    eval "process=\$$name"
    if ! wait "$process"; then
        echo "Failed: $name of the scripts of pages" >&2
        cat "$output/$name" >&2
        failed=1
    fi
done
exit "$failed"
