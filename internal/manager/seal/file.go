package seal

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/internal/fault"
)

// role is what a key of the file is for.
type role string

const (
	roleCurrent role = ""     // seals and opens
	roleNext    role = "next" // opens; will be the current one
	roleOld     role = "old"  // opens; was the current one
)

// maxKeyFile bounds the key file: a line for each key.
const maxKeyFile = 1024

// fileState tells whether a file is still the one that was read.
type fileState struct {
	inode    uint64
	size     int64
	modified time.Time
}

func stateFrom(st fs.FileInfo) fileState {
	s := fileState{size: st.Size(), modified: st.ModTime()}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		s.inode = sys.Ino
	}
	return s
}

func stateOf(path string) (fileState, error) {
	st, err := os.Stat(path)
	if err != nil {
		return fileState{}, err
	}
	return stateFrom(st), nil
}

// read returns the keys of a file, the one that seals first.
func read(path string) ([]secretKey, fileState, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fileState{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fileState{}, err
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, fileState{}, fault.Invalidf("master key %s may be read by others (mode %04o)", path, st.Mode().Perm()).
			WithNext("chmod 600 %s", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return nil, fileState{}, err
	}
	keys, err := parse(string(text))
	if err != nil {
		return nil, fileState{}, fmt.Errorf("%s: %w", path, err)
	}
	return keys, stateFrom(st), nil
}

// parse reads lines of "KEY", "KEY next" or "KEY old", where KEY has 64 hexadecimal digits. Exactly one is current; it comes first
// in the answer.
func parse(text string) (keys []secretKey, err error) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		f := strings.Fields(line)
		bad := len(f) == 0 || len(f) > 2
		as := roleCurrent
		if len(f) == 2 {
			as = role(f[1])
			bad = bad || as != roleNext && as != roleOld
		}
		var raw []byte
		if !bad {
			raw, err = hex.DecodeString(f[0])
			bad = err != nil || len(raw) != keySize
		}
		if bad {
			return nil, fault.Invalidf("the file is not a master key: its lines must hold %d hexadecimal digits", 2*keySize).
				WithNext("restore the master key file from its copy")
		}
		k, err := derive(raw, as)
		if err != nil {
			return nil, err
		}
		if as == roleCurrent {
			keys = append([]secretKey{k}, keys...)
		} else {
			keys = append(keys, k)
		}
	}
	current := 0
	for _, k := range keys {
		if k.role == roleCurrent {
			current++
		}
	}
	if current != 1 || len(keys) > 2 {
		return nil, fault.Invalidf("the master key file has %d keys, %d of them current", len(keys), current).
			WithNext("restore the master key file from its copy")
	}
	return keys, nil
}

func render(keys []secretKey) string {
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(strings.TrimSpace(hex.EncodeToString(k.raw)+" "+string(k.role)) + "\n")
	}
	return b.String()
}

// create makes a key file. Of two creators the first wins.
func create(path string, random io.Reader) error {
	k, err := fresh(random, roleCurrent)
	if err != nil {
		return err
	}
	return put(path, []secretKey{k}, func(from, to string) error {
		if err := os.Link(from, to); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	})
}

// Export is the text of the key file, for a manager that joins. A new key that waits to be used goes with it.
func (k *Key) Export() Secret { return Secret(render(k.list())) }

// Import makes a key file of an exported text. A file that is there is never replaced: it may be all that opens a cluster's secrets.
func Import(path string, text Secret) error {
	keys, err := parse(text.Reveal())
	if err != nil {
		return err
	}
	err = put(path, keys, os.Link)
	if errors.Is(err, fs.ErrExist) {
		return fault.Conflictf("there is a master key in %s", path).WithReason("master-key-exists").
			WithNext("if this host has never served another cluster, move the file away and try again")
	}
	return err
}

func fresh(random io.Reader, as role) (secretKey, error) {
	raw := make([]byte, keySize)
	if _, err := io.ReadFull(random, raw); err != nil {
		return secretKey{}, fmt.Errorf("make a master key: %w", err)
	}
	return derive(raw, as)
}

// put writes the whole file under another name first and then places it, so that no reader sees half a key. It is durable when
// put returns.
func put(path string, keys []secretKey, place func(from, to string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".master-key-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if st, err := os.Stat(path); err == nil {
		// Root may replace the key of a manager that runs as somebody else.
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
			if err := f.Chown(int(sys.Uid), int(sys.Gid)); err != nil {
				return errors.Join(err, f.Close())
			}
		}
	}
	_, err = f.WriteString(render(keys))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := place(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
