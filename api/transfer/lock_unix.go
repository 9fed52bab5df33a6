//go:build unix

package transfer

import (
	"os"
	"syscall"
)

// lockFile keeps other processes from writing a file until it is closed.
func lockFile(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
