#!/bin/sh
# Builds the native test driver with sanitizers and runs it. Usage: run_sanitizers.sh [address,undefined | thread]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
sanitizers=${1:-address,undefined}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cmake -S "$here/../../native" -B "$build" -DPILOTFISH_DRIVER=ON -DPILOTFISH_SANITIZE="$sanitizers" \
  -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 >/dev/null
cmake --build "$build" --parallel "$(nproc)"
# The thread sanitizer stops at threads made in a forked child unless told otherwise.
TSAN_OPTIONS=die_after_fork=0 "$build/driver"
