#!/bin/sh
# Makes an environment with the newer official Backend.AI command line (26.x) and prints its directory; bin/backend.ai there runs it.
# That client needs Python 3.13. Where the host has none, a root file system of Debian trixie is made for it, which takes root and
# mmdebstrap. It does nothing when the environment is there already. The pin beside the client: a newer blessed questions the terminal.
set -eu

client='backend.ai-client==26.4.10'
pins='blessed==1.25.0 setuptools<81'
cache=${BERTH_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
dir=$cache/official-client-26.4.10

say() { echo "official-client-26: $*" >&2; }

if [ -e "$dir/complete" ]; then
	echo "$dir"
	exit 0
fi
mkdir -p "$cache"
# One at a time: several packages' tests may ask for it together.
exec 9>"$dir.lock"
flock 9
if [ -e "$dir/complete" ]; then
	echo "$dir"
	exit 0
fi
rm -rf "$dir"
python=
for candidate in "${BERTH_PYTHON313:-}" /usr/bin/python3.13 python3.13; do
	if [ -n "$candidate" ] && "$candidate" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 13))' 2>/dev/null; then
		python=$candidate
		break
	fi
done
if [ -n "$python" ]; then
	say "installing $client into $dir"
	"$python" -m venv "$dir" >&2
	# shellcheck disable=SC2086 # the pins are words
	timeout 600 "$dir/bin/pip" install --quiet --disable-pip-version-check "$client" $pins >&2
else
	if [ "$(id -u)" != 0 ] || ! command -v mmdebstrap >/dev/null; then
		say "no Python 3.13 with venv, and no root or no mmdebstrap to make a Debian trixie with one; set BERTH_PYTHON313"
		exit 1
	fi
	say "making a root file system of Debian trixie with $client in $dir"
	root=$dir/root
	mkdir -p "$dir/bin"
	timeout 600 mmdebstrap --quiet --variant=minbase --include=python3.13,python3.13-venv,ca-certificates trixie "$root" >&2
	cp /etc/resolv.conf "$root/etc/resolv.conf"
	cp /etc/hosts "$root/etc/hosts"
	# Where a proxy stands between, the host trusts it.
	cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
	for conf in /etc/pip.conf "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf"; do
		[ ! -r "$conf" ] || cp "$conf" "$root/etc/pip.conf"
	done
	chroot "$root" /usr/bin/python3.13 -m venv /opt/client >&2
	# shellcheck disable=SC2086
	timeout 600 chroot "$root" /opt/client/bin/pip install --quiet --disable-pip-version-check "$client" $pins >&2
	cat >"$dir/bin/backend.ai" <<-END
		#!/bin/sh
		# Local files are those of the root file system.
		HOME=/tmp exec chroot '$root' /opt/client/bin/backend.ai "\$@"
	END
	chmod 755 "$dir/bin/backend.ai"
fi
"$dir/bin/backend.ai" --help >/dev/null
: >"$dir/complete"
echo "$dir"
