package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/durable"
	"berth.dev/berth/internal/fault"
)

// markerFile tells a volume from the empty directory that is there when it is not mounted.
const markerFile = ".berth/volume.json"

type marker struct {
	ID      string    `json:"id"`
	Volume  string    `json:"volume"`
	Created time.Time `json:"created"`
}

// readMarker returns "" where there is none.
func readMarker(path string) (id string, err error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return "", fault.Unavailablef("%s cannot be opened", path).WithCause(err).WithNext("mount the file system there")
	}
	defer root.Close()
	text, err := root.ReadFile(markerFile)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fault.Unavailablef("the marker of %s cannot be read", path).WithCause(err).
			WithNext("see whether the proxy may read %s", markerFile)
	}
	var m marker
	if err := json.Unmarshal(text, &m); err != nil || m.ID == "" {
		return "", fault.Unavailablef("the marker %s of %s holds nonsense", markerFile, path).WithCause(err).
			WithNext("if the volume is the right one, delete the marker; a new one is written")
	}
	return m.ID, nil
}

// writeMarker marks a volume that is used for the first time. The caller keeps others from doing the same.
func writeMarker(path string, m marker) error {
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer root.Close()
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	temp := markerFile + ".new"
	if err := root.WriteFile(temp, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("mark volume %s: %w", m.Volume, err)
	}
	f, err := root.Open(temp)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("mark volume %s: %w", m.Volume, err)
	}
	if err := root.Rename(temp, markerFile); err != nil {
		return err
	}
	// Durable before this node remembers it: a volume whose marker is lost looks as if it were not mounted.
	dir, err := root.Open(filepath.Dir(markerFile))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("mark volume %s: %w", m.Volume, err)
	}
	return nil
}

// memory remembers the markers that this node has seen, over restarts.
type memory struct {
	file string
	mu   sync.Mutex
	seen map[string]string // volume to marker
}

func openMemory(dir string) (*memory, error) {
	m := &memory{file: filepath.Join(dir, "volumes.json"), seen: map[string]string{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Invalidf("the storage proxy's directory %s cannot be made", dir).WithCause(err).WithNext("correct storage.state_dir")
	}
	text, err := os.ReadFile(m.file)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &m.seen)
	}
	if err != nil {
		return nil, fault.Invalidf("the file %s cannot be read", m.file).WithCause(err).
			WithNext("look at it; without it a missing mount is not noticed")
	}
	return m, nil
}

// check refuses a volume that is not the one seen before; found is "" where the volume has no marker.
func (m *memory) check(name, path, found string) error {
	m.mu.Lock()
	want := m.seen[name]
	m.mu.Unlock()
	switch {
	case want == "" || found == want:
		return nil
	case found == "":
		return fault.Unavailablef("%s does not hold volume %s, which was seen there before: its marker %s is missing", path, name, markerFile).
			WithReason("volume-not-mounted").WithNext("mount the volume; if it is new on purpose, delete its line from %s", m.file)
	}
	return fault.Unavailablef("%s holds another volume than the %s that was seen there before", path, name).
		WithReason("volume-not-mounted").WithNext("mount the right one; if it was replaced on purpose, delete its line from %s", m.file)
}

func (m *memory) remember(name, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen[name] == id {
		return nil
	}
	m.seen[name] = id
	text, err := json.MarshalIndent(m.seen, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.WriteFile(m.file, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("remember volume %s: %w", name, err)
	}
	return nil
}
