#!/bin/bash
# What `make bench` does: every measurement beside its peer, one run each; nothing is asserted.
#
#   scripts/bench.sh [REGEXP]      all benchmarks when none is named
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-deps.sh bench
docker version >/dev/null 2>&1 || scripts/engine.sh ensure
images/build.sh
if command -v "${CC:-gcc}" >/dev/null; then
  make --no-print-directory nvml
  export BERTH_NVML=$PWD/bin/berth-nvml
fi
BERTH_BENCH=1 BERTH_TEST_ENGINE=1 BERTH_BIN=$PWD/bin/berth exec go test -run '^$' -bench "${1:-.}" -benchtime 1x -count 1 -timeout 40m -p 1 \
  ./bench/... ./e2e
