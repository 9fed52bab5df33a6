#!/bin/sh
# Installs the driver of browser stories (playwright-core, as e2e/browser/package-lock.json pins it) into a cache and prints
# two lines: the directory of its modules, and Chromium's path. It does nothing when the driver is there already.
set -eu
cd "$(dirname "$0")/.."

chromium=${BERTH_CHROMIUM:-}
# The headless shell draws no windows: pages take a fifth less of the processor in it.
for candidate in chromium-headless-shell chromium chromium-browser google-chrome; do
	[ -n "$chromium" ] || chromium=$(command -v "$candidate" || true)
done
if [ -z "$chromium" ]; then
	echo "browser: no Chromium; install chromium-headless-shell or set BERTH_CHROMIUM" >&2
	exit 1
fi
if ! command -v node >/dev/null || ! node -e 'process.exit(parseInt(process.versions.node) >= 18 ? 0 : 1)'; then
	echo "browser: no Node.js 18 or newer; install nodejs" >&2
	exit 1
fi
lock=$(sha256sum e2e/browser/package-lock.json | cut -c1-16)
cache=${BERTH_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
dir=$cache/browser-$lock
mkdir -p "$cache"
# One at a time: several packages' tests may ask for it together.
exec 9>"$dir.lock"
flock 9
if [ ! -e "$dir/complete" ]; then
	command -v npm >/dev/null || { echo "browser: npm is missing; install npm" >&2; exit 1; }
	echo "browser: installing playwright-core into $dir" >&2
	rm -rf "$dir"
	mkdir -p "$dir"
	cp e2e/browser/package.json e2e/browser/package-lock.json "$dir/"
	(cd "$dir" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
	: >"$dir/complete"
fi
printf '%s\n%s\n' "$dir" "$chromium"
