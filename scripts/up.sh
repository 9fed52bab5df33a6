#!/bin/bash
# What `make up` does: from a bare Debian machine with Go to a running cluster and a first session.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*" >&2; }

command -v go >/dev/null || { echo "up: Go 1.26 is missing; next: install it from https://go.dev/dl/" >&2; exit 1; }
say "packages"
scripts/install-deps.sh
say "container engine"
if [ "$(id -u)" = 0 ]; then scripts/engine.sh ensure; else
  docker version >/dev/null 2>&1 || sudo scripts/engine.sh ensure
fi
say "build"
make --no-print-directory build
say "images"
images/build.sh
say "cluster"
if bin/berth status >/dev/null 2>&1; then
  bin/berth status
else
  bin/berth up --detach
fi
say "first session: berth run python -c 'print(6*7)'"
bin/berth run python -c 'print(6*7)'
