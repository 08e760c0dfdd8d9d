#!/bin/sh
# Builds the package as it is shipped, the server and the measurements of the library, and measures all of it in one run.
# Arguments go to run.py, such as --quick.
set -eu
cd "$(dirname "$0")/../.."
: "${TARGET_DIR:=$PWD/target}" "${PYTHON:=python3}" "${CARGO:=cargo}" "${JOBS:=2}"
venv=$TARGET_DIR/tmp/python-bench
if [ ! -e "$venv/ready" ]; then
    "$PYTHON" -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet maturin==1.16.0 --requirement sandbox-envd/tests/sdk/python/requirements.txt
    touch "$venv/ready"
fi
"$CARGO" build --release -j "$JOBS" -p sandhold-server -p sandhold-benches --bin sandhold-server --bin local
rm -rf "$TARGET_DIR/wheels"
PATH=$venv/bin:$PATH make --no-print-directory python TARGET_DIR="$TARGET_DIR" JOBS="$JOBS"
"$venv/bin/pip" install --quiet --no-deps --no-index --force-reinstall "$TARGET_DIR"/wheels/sandhold-*.whl
exec "$venv/bin/python" -I bindings-python/bench/run.py --local "$TARGET_DIR/release/local" \
    --server "$TARGET_DIR/release/sandhold-server" --helper "$TARGET_DIR/release/sandhold-helper" "$@"
