#!/bin/sh
# Puts together what the package consists of: the face, the native part that NATIVE names, and the helper that HELPER names.
set -eu
cd "$(dirname "$0")"
rm -rf dist
node_modules/.bin/tsc --project tsconfig.json
# Never in place: processes may have mapped it, and sandboxes may run it.
put() {
    mkdir -p "$(dirname "$2")"
    cp "$1" "$2.new"
    mv -f "$2.new" "$2"
}
put "$NATIVE" sandhold.node
strip --strip-debug sandhold.node 2>/dev/null || true
put "$HELPER" bin/sandhold-helper
