package transfer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"berth.dev/berth/api"
)

// resumeLife is how long an unfinished transfer is remembered. Servers forget earlier or later; asking them is cheap.
const resumeLife = 24 * time.Hour

// ResumeDir is a directory with a small file for each unfinished transfer, so that another process goes on with
// it. The files hold upload tokens and are readable by their owner only. Failing to write one costs a restart of
// that transfer and is not an error.
type ResumeDir struct {
	dir string
	now func() time.Time
}

// OpenResumeDir makes the directory when it is missing and removes what is too old to be of use.
func OpenResumeDir(dir string, now func() time.Time) (*ResumeDir, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory for unfinished transfers: %w", err)
	}
	d := &ResumeDir{dir: dir, now: now}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read unfinished transfers: %w", err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && now().Sub(info.ModTime()) > resumeLife {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	return d, nil
}

// unfinished is what is remembered: the ticket of an upload, or the version of a file whose start was downloaded.
type unfinished struct {
	Ticket  api.Ticket  `json:"ticket,omitzero"`
	Version fileVersion `json:"version,omitzero"`
	SavedAt time.Time   `json:"saved_at"`
}

// resumeKey names a transfer by all that must not change for it to go on.
func resumeKey(parts ...any) string {
	b, _ := json.Marshal(parts) // Texts and numbers; cannot fail.
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

func (d *ResumeDir) file(key string) string { return filepath.Join(d.dir, key+".json") }

func (d *ResumeDir) load(key string) (u unfinished, ok bool) {
	if d == nil {
		return u, false
	}
	b, err := os.ReadFile(d.file(key))
	if err != nil || json.Unmarshal(b, &u) != nil || d.now().Sub(u.SavedAt) > resumeLife {
		return unfinished{}, false
	}
	return u, true
}

func (d *ResumeDir) save(key string, u unfinished) {
	if d == nil {
		return
	}
	u.SavedAt = d.now()
	b, err := json.Marshal(u)
	if err != nil {
		return
	}
	f, err := os.CreateTemp(d.dir, ".new-*") // 0600
	if err != nil {
		return
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), d.file(key))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
}

func (d *ResumeDir) forget(key string) {
	if d == nil {
		return
	}
	if err := os.Remove(d.file(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		_ = os.Truncate(d.file(key), 0)
	}
}

// forgetIf is forget for transfers that may have no key.
func (d *ResumeDir) forgetIf(key string) {
	if key != "" {
		d.forget(key)
	}
}

// lockPart opens the file that a download grows in, for this process alone.
func lockPart(root *os.Root, name string) (*os.File, error) {
	for range 3 {
		f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, err
		}
		if err := lockFile(f); err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("another process downloads to the same place: %w", err)
		}
		// The process before us may have finished and renamed the file between our opening and locking it.
		mine, err := f.Stat()
		if err == nil {
			var there fs.FileInfo
			if there, err = root.Lstat(name); err == nil && os.SameFile(mine, there) {
				return f, nil
			}
		}
		_ = f.Close()
	}
	return nil, fmt.Errorf("another process downloads to the same place")
}
