#!/bin/bash
# Builds the console of web/ into web/dist, from where package web embeds it. It does nothing when the sources are the same as at the last
# time.
#
#   scripts/web.sh          build
#   scripts/web.sh check    types and component tests, unless the same files have passed before
#   scripts/web.sh modules  install the modules that web/package-lock.json pins
#
# Modules lie in a cache outside of the tree, by the content of the lock file: some of them hold files of Go, which are not ours.
set -euo pipefail
cd "$(dirname "$0")/../web"

say() { printf 'console: %s\n' "$*" >&2; }

node -e 'process.exit(parseInt(process.versions.node) >= 18 ? 0 : 1)' 2>/dev/null || {
  say "Node.js 18 or newer is missing; next: apt-get install nodejs npm"
  exit 1
}

modules() {
  local lock cache dir
  lock=$(sha256sum package-lock.json | cut -c1-16)
  cache=${BERTH_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
  dir=$cache/console-$lock
  mkdir -p "$cache"
  exec 9>"$dir.lock"
  flock 9
  if [ ! -e "$dir/complete" ]; then
    command -v npm >/dev/null || { say "npm is missing; next: apt-get install npm"; exit 1; }
    say "installing modules (usually 20 s)"
    rm -rf "$dir"
    mkdir -p "$dir"
    cp package.json package-lock.json "$dir/"
    (cd "$dir" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
    : >"$dir/complete"
  fi
  exec 9>&-
  # A directory of that name is a developer's own.
  if [ -L node_modules ] || [ ! -e node_modules ]; then ln -sfn "$dir/node_modules" node_modules; fi
}

# What the files of the console follow from, without what find leaves out.
sources() { # FIND-CONDITION...
  find . ../scripts/web.sh \( -name node_modules -o -name dist -o -name shots \) -prune -o -type f ! -name '*.go' "$@" -print0 |
    LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-32
}

case ${1:-build} in
modules) modules ;;
check)
  now=$(sources) checked=../.cache/console-checked
  if [ "$(cat $checked 2>/dev/null)" = "$now" ]; then exit 0; fi
  modules
  node node_modules/typescript/bin/tsc -p tsconfig.json
  node node_modules/vitest/vitest.mjs run
  mkdir -p ../.cache
  echo "$now" >$checked
  ;;
build)
  now=$(sources ! -name '*.test.ts*')
  if [ "$(cat dist/.sources 2>/dev/null)" = "$now" ]; then exit 0; fi
  modules
  say "building (usually 15 s)"
  node node_modules/vite/bin/vite.js build --logLevel warn
  node test/size.mjs
  # Text is embedded and sent compressed. The index page gets a nonce in every answer.
  find dist -type f ! -name index.html \( -name '*.js' -o -name '*.css' -o -name '*.svg' -o -name '*.json' -o -name '*.webmanifest' \) \
    -exec gzip -9 -n {} +
  echo "$now" >dist/.sources
  ;;
*)
  say "unknown word $1"
  exit 2
  ;;
esac
