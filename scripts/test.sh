#!/bin/bash
# What `make test` and .ci/run do: install what tests need, make sure of an engine, images and
# the binary, run all tests, and stop what was started, also on failure.
#
#   scripts/test.sh [PACKAGE...]      ./... when none is named
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- ./...

say() { printf '\n== %s\n' "$*" >&2; }

started=
cleanup() {
  local code=$?
  trap - EXIT
  if [ -n "$started" ]; then scripts/engine.sh stop || true; fi
  exit $code
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say "packages"
scripts/install-deps.sh test
say "container engine"
docker version >/dev/null 2>&1 || { scripts/engine.sh ensure; started=1; }
say "build"
make --no-print-directory build
say "images"
images/build.sh
say "tests"
export BERTH_TEST_ENGINE=1 BERTH_BIN=$PWD/bin/berth
export BERTH_SIM_SEEDS=${BERTH_SIM_SEEDS:-200} # of internal/testkit/simulation
if [ "$*" != ./... ]; then
  go test -p 2 -timeout 35m "$@"
  exit
fi
# The stories start whole clusters: they get the machine to themselves, after everything else.
code=0
go run ./scripts/testdb go test -p 2 -timeout 25m $(go list ./... | grep -v '/e2e$') || code=$?
say "stories"
go test -timeout 25m ./e2e || code=$?
say "quotas of XFS"
scripts/xfs-quota.sh --if-needed || code=$?
exit $code
