#!/bin/bash
# proto/gen is what protoc-c makes of proto/psd.proto.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
protoc-c --proto_path=proto --c_out="$dir" psd.proto
diff -r "$dir" proto/gen || { echo "check-gen: run make gen and commit the result" >&2; exit 1; }
echo "check-gen: ok"
