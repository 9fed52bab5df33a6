#!/bin/sh
# Downloads the package of the official Web UI's components, in which all of its GraphQL documents stand as they are sent, into a cache and
# prints the file that holds them. It does nothing when the file is there already. Nothing of the package is run.
set -eu
package=backend.ai-ui version=26.8.1
sum=4cca42b054aba479a80f2723bc0fa1c10cd0e3802814923ecdc5d3c5ac75449df2e06400e46c1e123d8f17feb3e057501f2c8a0a05e6be3b175f0873b8efa8c3

cache=${BERTH_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
dir=$cache/$package-$version
file=$dir/package/dist/$package.js
mkdir -p "$cache"
# One at a time: several packages' tests may ask for it together.
exec 9>"$dir.lock"
flock 9
if [ ! -e "$file" ]; then
	command -v npm >/dev/null || { echo "webui-components: npm is missing; install npm" >&2; exit 1; }
	rm -rf "$dir"
	mkdir -p "$dir"
	archive=$(cd "$dir" && npm pack --loglevel=error "$package@$version")
	echo "$sum  $dir/$archive" | sha512sum -c --quiet >&2
	tar -xzf "$dir/$archive" -C "$dir" --no-same-owner "package/dist/$package.js"
	rm -f "$dir/$archive"
fi
printf '%s\n' "$file"
