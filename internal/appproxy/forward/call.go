//go:build !race

package forward

import (
	"syscall"
	"unsafe"
)

// readNow, writeNow and spliceNow move bytes of a socket that does not block. The scheduler need not know: giving the processor
// away and taking it back costs more than such a call. Calls take at most a page or a pipe, so that none keeps the processor
// for long: a pipe of 256 KiB takes some 25 us in and as much out.
func readNow(fd int, b []byte) (int, error) { return call(syscall.SYS_READ, fd, b) }

func writeNow(fd int, b []byte) (int, error) { return call(syscall.SYS_WRITE, fd, b) }

func call(trap uintptr, fd int, b []byte) (int, error) {
	n, _, errno := syscall.RawSyscall(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func spliceNow(from, to, n int) (int, error) {
	moved, _, errno := syscall.RawSyscall6(syscall.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n), spliceFlags)
	if errno != 0 {
		return 0, errno
	}
	return int(moved), nil
}
