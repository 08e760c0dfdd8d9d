#!/bin/sh
# Builds the package as it is shipped, the server and the measurements of the library, and measures all of it in one run.
# Arguments go to run.mjs, such as --quick.
set -eu
cd "$(dirname "$0")/../.."
: "${TARGET_DIR:=$PWD/target}" "${CARGO:=cargo}" "${JOBS:=2}"
place=$TARGET_DIR/tmp/node-bench
"$CARGO" build --release -j "$JOBS" -p sandhold-server -p sandhold-benches --bin sandhold-server --bin local
rm -rf "$TARGET_DIR/npm" "$place/node_modules/sandhold"
make --no-print-directory node TARGET_DIR="$TARGET_DIR" JOBS="$JOBS"
mkdir -p "$place"
printf '{"private": true}\n' >"$place/package.json"
npm install --prefix "$place" --silent --no-audit --no-fund e2b@2.51.0 "$TARGET_DIR"/npm/sandhold-*.tgz
cp bindings-node/bench/run.mjs "$place/run.mjs"
exec node "$place/run.mjs" --local "$TARGET_DIR/release/local" --server "$TARGET_DIR/release/sandhold-server" \
    --helper "$TARGET_DIR/release/sandhold-helper" "$@"
