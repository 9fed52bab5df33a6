#!/bin/sh
# Installs the official client for JavaScript, as e2e/npmclient/package-lock.json pins it, into a cache and prints the directory of its
# modules. It does nothing when the client is there already.
set -eu
cd "$(dirname "$0")/.."

if ! command -v node >/dev/null || ! node -e 'process.exit(parseInt(process.versions.node) >= 18 ? 0 : 1)'; then
	echo "npm-client: no Node.js 18 or newer; install nodejs" >&2
	exit 1
fi
lock=$(sha256sum e2e/npmclient/package-lock.json | cut -c1-16)
cache=${BERTH_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
dir=$cache/npm-client-$lock
mkdir -p "$cache"
# One at a time: several packages' tests may ask for it together.
exec 9>"$dir.lock"
flock 9
if [ ! -e "$dir/complete" ]; then
	command -v npm >/dev/null || { echo "npm-client: npm is missing; install npm" >&2; exit 1; }
	echo "npm-client: installing backend.ai-client into $dir" >&2
	rm -rf "$dir"
	mkdir -p "$dir"
	cp e2e/npmclient/package.json e2e/npmclient/package-lock.json "$dir/"
	(cd "$dir" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
	: >"$dir/complete"
fi
printf '%s\n' "$dir"
