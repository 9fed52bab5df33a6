// Package runnerbin carries the runner, PID 1 of every container, inside the berth binary and
// puts it on disk. It knows nothing of what the runner does; cmd/berth calls it for the agent.
//
// The runner is embedded only with the build tag "runner", after `make runner` has built
// berth-runner.zst beside this file; without the tag the packages vet and test on a fresh clone,
// and a berth-runner next to the running binary is used instead.
package runnerbin

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"berth.dev/berth/internal/fault"
)

// maxSize bounds the unpacked runner.
const maxSize = 64 << 20

// Unpack returns the path of an executable runner, writing it below dir when it is not there
// yet. The name holds the content's digest: containers that still run an older one keep it.
// Everybody may read and execute it, because containers with other users do.
func Unpack(dir string) (string, error) {
	if len(packed) == 0 {
		return beside()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("unpack runner: %w", err)
	}
	sum := sha256.Sum256(packed)
	path := filepath.Join(dir, "berth-runner-"+hex.EncodeToString(sum[:8]))
	if info, err := os.Stat(path); err == nil && info.Mode().Perm() == 0o755 && info.Size() > 0 {
		return path, nil
	}
	zr, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return "", fmt.Errorf("unpack runner: %w", err)
	}
	defer zr.Close()
	// Written aside and renamed: a killed unpacking never leaves a half runner under the name.
	f, err := os.CreateTemp(dir, ".berth-runner-")
	if err != nil {
		return "", fmt.Errorf("unpack runner: %w", err)
	}
	defer os.Remove(f.Name()) // gone already after the rename
	_, err = io.Copy(f, io.LimitReader(zr, maxSize))
	err = errors.Join(err, f.Chmod(0o755), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return "", fmt.Errorf("unpack runner: %w", err)
	}
	return path, nil
}

func beside() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find runner: %w", err)
	}
	path := filepath.Join(filepath.Dir(self), "berth-runner")
	if _, err := os.Stat(path); err != nil {
		return "", fault.Unavailablef("this berth was built without its runner, and there is no %s", path).
			WithReason("runner-missing").WithNext("build both with: make build")
	}
	return path, nil
}
