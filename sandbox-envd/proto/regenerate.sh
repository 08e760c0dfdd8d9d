#!/bin/sh
# Regenerates the committed descriptor set; the build itself needs no protoc.
set -eu
cd "$(dirname "$0")"
protoc -I . --include_imports --include_source_info --descriptor_set_out=envd.binpb process.proto filesystem.proto
