//go:build !pgbundle

package embedded

// pgBundle is empty in builds without the tag pgbundle: PostgreSQL must be installed then.
var pgBundle []byte
