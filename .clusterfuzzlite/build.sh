#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds every fuzz target of the tree for ClusterFuzzLite, in its image.
set -euo pipefail
# The compiler of go.mod, where files may be laid over it: below the module cache Go refuses that.
goroot=$(mktemp -d)
cp -r "$(go env GOROOT)/." "$goroot"
chmod -R u+w "$goroot"
export GOROOT=$goroot GOTOOLCHAIN=local PATH=$goroot/bin:$PATH
module=$(go list -m)
while IFS=: read -r file func; do
  dir=$(dirname "$file") target=${func#func }
  compile_native_go_fuzzer_v2 "$module/$dir" "$target" "${dir//\//_}_$target"
done < <(find . -name '*_test.go' -printf '%P\n' | xargs grep -HoE '^func Fuzz[A-Za-z0-9_]+')
