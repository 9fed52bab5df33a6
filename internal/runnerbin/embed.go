//go:build runner

package runnerbin

import _ "embed"

// packed is the static runner for this binary's platform, compressed.
//
//go:embed berth-runner.zst
var packed []byte
