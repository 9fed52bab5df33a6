#!/bin/bash
# What `make test` and .ci/run do: install what tests need, make sure of an engine, images and
# the binary, run all tests, and stop what was started, also on failure.
#
#   scripts/test.sh [PACKAGE...]      ./... when none is named
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- ./...

say() { printf '\n== %s\n' "$*" >&2; }

. scripts/beside.sh
started=
dir=$(mktemp -d)
cleanup() {
  local code=$?
  trap - EXIT
  end_steps
  rm -rf "$dir"
  if [ -n "$started" ]; then scripts/engine.sh stop || true; fi
  exit $code
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say "packages, and compilation beside them"
beside compilation make --no-print-directory compile
scripts/install-deps.sh test
say "container engine, and images beside the build"
docker version >/dev/null 2>&1 || { scripts/engine.sh ensure; started=1; }
beside images images/build.sh
finish compilation
say "build"
make --no-print-directory build
go build -o "$dir/leftout" ./scripts/leftout
if command -v "${CC:-gcc}" >/dev/null; then
  make --no-print-directory nvml
  export BERTH_NVML=$PWD/bin/berth-nvml
fi
finish images
say "tests"
export BERTH_TEST_ENGINE=1 BERTH_BIN=$PWD/bin/berth
export BERTH_SIM_SEEDS=${BERTH_SIM_SEEDS:-200} # of internal/testkit/simulation
# A simulation waits for its database half of the time: so many run at a time that it does not run alone in the end.
export BERTH_SIM_WORKERS=${BERTH_SIM_WORKERS:-4}
if [ "$*" != ./... ]; then
  go test -p 2 -timeout 35m "$@"
  exit
fi
# The stories start whole clusters: they get the machine to themselves, after everything else.
code=0
export BERTH_LEFT_OUT=$dir/left-out BERTH_FAILED=$dir/failed
: >"$BERTH_LEFT_OUT"
: >"$BERTH_FAILED"
# Most tests wait more than they compute, so more of them run at a time than there are cores; those that take longest begin first.
longest=(./internal/testkit/simulation ./internal/testkit ./internal/scheduler/... ./internal/manager/... ./internal/agent/... ./internal/runner/...)
go run ./scripts/testdb env GOGC="${GOGC:-400}" go test -json -p 4 -parallel 6 -timeout 25m "${longest[@]}" $(go list ./... | grep -v '/e2e$') |
  "$dir/leftout" || code=$?
say "stories"
go test -json -parallel 3 -timeout 40m ./e2e | "$dir/leftout" || code=$?
say "NVIDIA GPUs"
scripts/test-gpu.sh --if-possible || code=$?
say "quotas of XFS"
scripts/xfs-quota.sh --if-needed || code=$?
if [ -s "$BERTH_LEFT_OUT" ]; then
  say "left out"
  sort -u "$BERTH_LEFT_OUT" >&2
else
  say "nothing was left out"
fi
if [ -s "$BERTH_FAILED" ]; then
  say "failed"
  cat "$BERTH_FAILED" >&2
fi
exit $code
