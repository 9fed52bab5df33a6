#!/bin/sh
# Makes a virtual environment with the official Backend.AI command line and prints its directory.
# It does nothing when the environment is there already. Two pins beside the client are needed on
# Python 3.11: a newer yarl breaks every signed request, a newer setuptools lacks pkg_resources.
set -eu

client='backend.ai-client==23.9.10'
pins="yarl==1.9.4 setuptools<81"
cache=${BERTH_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
venv=$cache/official-client-23.9.10

if [ -e "$venv/complete" ]; then
	echo "$venv"
	exit 0
fi
python=
for candidate in "${BERTH_PYTHON311:-}" /usr/bin/python3.11 python3.11; do
	if [ -n "$candidate" ] && "$candidate" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
		python=$candidate
		break
	fi
done
if [ -z "$python" ]; then
	echo "official-client: no Python 3.11 with venv; install python3.11-venv or set BERTH_PYTHON311" >&2
	exit 1
fi
mkdir -p "$cache"
# One at a time: several packages' tests may ask for it together.
exec 9>"$venv.lock"
flock 9
if [ ! -e "$venv/complete" ]; then
	echo "official-client: installing $client into $venv" >&2
	rm -rf "$venv"
	"$python" -m venv "$venv" >&2
	# shellcheck disable=SC2086 # the pins are words
	"$venv/bin/pip" install --quiet --disable-pip-version-check "$client" $pins >&2
	"$venv/bin/backend.ai" --help >/dev/null
	: >"$venv/complete"
fi
echo "$venv"
