#!/bin/sh
# Puts together what the package consists of: the face, the native part that NATIVE names, and the helper that HELPER names.
# With PLATFORM, such as linux-x64-gnu, the last two go to a package of their own in npm/PLATFORM, as a release has them:
# `npm pack` then packs the face alone, and `npm pack ./npm/PLATFORM` the rest.
set -eu
cd "$(dirname "$0")"
rm -rf dist
node_modules/.bin/tsc --project tsconfig.json
node_modules/.bin/tsc --project tsconfig.mastra.json
# Never in place: processes may have mapped it, and sandboxes may run it.
put() {
    mkdir -p "$(dirname "$2")"
    cp "$1" "$2.new"
    mv -f "$2.new" "$2"
}
into=.
if [ -n "${PLATFORM:-}" ]; then
    into=npm/$PLATFORM
    rm -rf sandhold.node bin "$into"
    mkdir -p "$into"
    node - "$PLATFORM" >"$into/package.json" <<'END'
const { version, license, engines } = require('./package.json')
const platform = process.argv[2]
const [os, cpu, libc] = platform.split('-')
const described = {
  name: `@sandhold/node-${platform}`,
  version,
  description: `The native part of sandhold for ${platform}`,
  license,
  os: [os],
  cpu: [cpu],
  ...(libc ? { libc: [libc === 'gnu' ? 'glibc' : libc] } : {}),
  engines,
  files: ['sandhold.node', 'bin']
}
console.log(JSON.stringify(described, null, 2))
END
fi
put "$NATIVE" "$into/sandhold.node"
strip --strip-debug "$into/sandhold.node" 2>/dev/null || true
put "$HELPER" "$into/bin/sandhold-helper"
