#!/bin/sh
# Packs the package as it is shipped, but for the optimisation, installs it into an empty directory and tests it there.
# Says `skipped: needs ...` where something is missing. HELPER names the program that goes into the package.
set -eu
[ -z "${TARGET_DIR:-}" ] || TARGET_DIR=$(realpath -m "$TARGET_DIR")
cd "$(dirname "$0")"
: "${TARGET_DIR:=$PWD/../target}" "${CARGO:=cargo}" "${JOBS:=2}"
: "${HELPER:=${SANDHOLD_HELPER:-$TARGET_DIR/debug/sandhold-helper}}"
unset SANDHOLD_HELPER

if ! { command -v npm && node -e 'process.exit(process.versions.node.split(".")[0] >= 20 ? 0 : 1)'; } >/dev/null 2>&1; then
    echo 'skipped: needs Node.js 20 or newer with npm'
    exit 0
fi
wanted=$(node --version && cat package-lock.json)
if [ "$(cat node_modules/.sandhold-installed 2>/dev/null)" != "$wanted" ]; then
    if ! npm ci --silent --no-audit --no-fund; then
        echo 'skipped: needs the packages of bindings-node/package-lock.json from the registry of npm'
        exit 0
    fi
    printf '%s\n' "$wanted" >node_modules/.sandhold-installed
fi

CARGO_TARGET_DIR=$TARGET_DIR/bindings "$CARGO" build --quiet --locked -j "$JOBS"
NATIVE=$TARGET_DIR/bindings/debug/libsandhold_node.so HELPER=$HELPER sh package.sh
place=$TARGET_DIR/tmp/node
rm -rf "$place"
mkdir -p "$place"
npm pack --silent --pack-destination "$place" >/dev/null
printf '{"private": true}\n' >"$place/package.json"
(cd "$place" && npm install --silent --no-audit --no-fund --offline ./sandhold-*.tgz)

# Mastra, beside the package, as its users have it.
mkdir -p "$place/node_modules/@mastra"
ln -s "$PWD/node_modules/@mastra/core" "$place/node_modules/@mastra/core"

# Of the installed package alone: what is compiled here is run there.
node_modules/.bin/tsc --project test/tsconfig.json --outDir "$place/test"
# What the declarations are held against.
cp ../docs/api.json "$place/api.json"
log=$(mktemp)
SANDHOLD_TEST_HOME=$(mktemp -d)
export SANDHOLD_TEST_HOME
trap 'rm -rf "$log" "$SANDHOLD_TEST_HOME"' EXIT
status=0
(cd "$place" && timeout -k 10 "${TEST_SECONDS:-600}" node --test --test-reporter=spec "$@" test/*.test.js test/*.test.mjs) >"$log" 2>&1 || status=$?
cat "$log"
# As cargo says it, so that one sum has both.
count() { grep -oE "^ℹ $1 [0-9]+" "$log" | cut -d ' ' -f 3; }
passed=$(count pass || true) failed=$(count fail || true) cancelled=$(count cancelled || true)
echo "test result: node. ${passed:-0} passed; $((${failed:-0} + ${cancelled:-0})) failed"
exit "$status"
