#!/bin/bash
# What `make up` does: from a bare Debian machine with Go to a running cluster and a first session.
#
# Steps that do not need each other run at the same time: the Go build beside the packages (it needs no package of theirs unless
# PostgreSQL has to be bundled), and the images beside each other and beside both. Where there is no engine yet, the images begin as soon
# as the one package is there that they take, and wait for the engine only when they are ready.
set -euo pipefail
cd "$(dirname "$0")/.."

begun=$SECONDS
say() { printf '\n== %s\n' "$*" >&2; }
took() { printf 'up: %s done after %s s\n' "$1" "$((SECONDS - begun))" >&2; }

. scripts/beside.sh
trap end_steps EXIT
trap 'exit 130' INT TERM

have() { # NAME of a step that has to be done by now
  finish "$1" || { echo "up: $1 failed; next: read the messages above and run make up again" >&2; exit 1; }
  took "$1"
}

command -v go >/dev/null || { echo "up: Go 1.26 is missing; next: install it from https://go.dev/dl/" >&2; exit 1; }

# With the packages the build knows whether PostgreSQL is there; before, only the compilation can be begun, which is the long part.
say "packages (usually 45 s when something is missing) and, beside them, compilation (usually 90 s the first time, 5 s later)"
beside compilation make --no-print-directory compile
images=
build_images() { # [NAME=VALUE] for its environment
  say "images, beside the rest (usually 45 s the first time, 1 s later)"
  beside images env "$@" images/build.sh
  images=begun
}
if ! command -v dockerd >/dev/null; then
  scripts/install-deps.sh images
  export BERTH_APT_UPDATED=1
  build_images BERTH_ENGINE_WAIT=300
fi
scripts/install-deps.sh
took packages
say "console, beside the rest (usually 40 s the first time, 0 s later)"
beside console make --no-print-directory web
say "container engine (usually 3 s)"
if [ "$(id -u)" = 0 ]; then scripts/engine.sh ensure; else
  docker version >/dev/null 2>&1 || sudo scripts/engine.sh ensure
fi
[ -n "$images" ] || build_images
have compilation
have console
say "build (usually 5 s)"
make --no-print-directory build
took build
have images
say "cluster (usually 5 s)"
if bin/berth status >/dev/null 2>&1; then
  bin/berth status
else
  bin/berth up --detach
fi
say "first session (usually 1 s): berth run python -c 'print(6*7)'"
bin/berth run python -c 'print(6*7)'
took everything
