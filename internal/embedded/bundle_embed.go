//go:build pgbundle

package embedded

import _ "embed"

// pgBundle is PostgreSQL for linux/amd64 as a zstd-compressed tar, packed by
// scripts/pg-bundle.sh from a pinned npm package.
//
//go:embed bundle/postgres-linux-amd64.tar.zst
var pgBundle []byte
