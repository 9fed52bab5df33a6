package cluster

import "fmt"

// OutOfMemoryWords tell people that a kernel's processes were killed for want of memory, and what to do. limit is what the kernel had in
// bytes, 0 when that is not known.
func OutOfMemoryWords(limit int64) string {
	const mib, gib = 1 << 20, 1 << 30
	if limit <= 0 {
		return "killed: out of memory; try more with -r mem="
	}
	had := fmt.Sprintf("%d MiB", limit/mib)
	if limit%gib == 0 {
		had = fmt.Sprintf("%d GiB", limit/gib)
	}
	more := fmt.Sprintf("%dm", 2*limit/mib)
	if 2*limit%gib == 0 {
		more = fmt.Sprintf("%dg", 2*limit/gib)
	}
	return "killed: out of memory at " + had + "; try -r mem=" + more
}
