//go:build !runner

package runnerbin

var packed []byte
