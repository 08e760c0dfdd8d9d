#!/bin/sh
# Builds the wheel as it is shipped, but for the optimisation, installs it into an environment of its own and tests it there.
# Says `skipped: needs ...` where something is missing. HELPER names the program that goes into the wheel.
set -eu
[ -z "${TARGET_DIR:-}" ] || TARGET_DIR=$(realpath -m "$TARGET_DIR")
cd "$(dirname "$0")"
: "${TARGET_DIR:=$PWD/../target}" "${PYTHON:=python3}" "${JOBS:=2}"
: "${HELPER:=${SANDHOLD_HELPER:-$TARGET_DIR/debug/sandhold-helper}}"
unset SANDHOLD_HELPER

if ! "$PYTHON" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo 'skipped: needs python3 3.10 or newer with venv'
    exit 0
fi
venv=$TARGET_DIR/tmp/python
wanted=$("$PYTHON" -c 'import sys; print(sys.executable, sys.version)' && cat tests/requirements.txt)
if [ "$(cat "$venv/.sandhold-installed" 2>/dev/null)" != "$wanted" ]; then
    "$PYTHON" -m venv --clear "$venv"
    if ! "$venv/bin/pip" install --quiet --requirement tests/requirements.txt; then
        echo 'skipped: needs pip and the packages of bindings-python/tests/requirements.txt from its registry'
        exit 0
    fi
    printf '%s\n' "$wanted" >"$venv/.sandhold-installed"
fi

# Never in place: sandboxes may run it.
mkdir -p python/sandhold/_bin
cp "$HELPER" python/sandhold/_bin/.sandhold-helper
mv -f python/sandhold/_bin/.sandhold-helper python/sandhold/_bin/sandhold-helper
dist=$TARGET_DIR/tmp/wheels
rm -rf "$dist"
PATH=$venv/bin:$PATH CARGO_TARGET_DIR=$TARGET_DIR/bindings \
    maturin build --quiet --locked -j "$JOBS" --interpreter "$venv/bin/python" --out "$dist"
"$venv/bin/pip" install --quiet --no-deps --no-index --force-reinstall "$dist"/*.whl

# Of the installed package alone: nothing of this folder is on the path.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
"$venv/bin/python" -I -m pytest "$@" >"$log" 2>&1 || status=$?
cat "$log"
# As cargo says it, so that one sum has both.
count() { tail -n 1 "$log" | grep -oE "[0-9]+ $1" | cut -d ' ' -f 1; }
passed=$(count passed || true) failed=$(count failed || true) errors=$(count error || true)
echo "test result: pytest. ${passed:-0} passed; $((${failed:-0} + ${errors:-0})) failed"
exit "$status"
