//go:build race

package forward

import "syscall"

// The race detector learns from these what bytes on a socket bring into order.
func readNow(fd int, b []byte) (int, error) { return syscall.Read(fd, b) }

func writeNow(fd int, b []byte) (int, error) { return syscall.Write(fd, b) }
