package sshd

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/crypto/ssh"

	"berth.dev/berth/internal/runner/proc"
)

// maxEnded bounds the keys that are remembered as taken away. Beyond it the user's own file of keys counts no more.
const maxEnded = 4096

// extKey is where the permissions of a connection keep the key that it logged in with.
const extKey = "berth-key"

// ring holds the keys that the platform lets in and those that it took away. Apps sshd and sftp share one.
type ring struct {
	mu    sync.Mutex
	now   map[string]bool
	ended map[string]bool
	open  map[io.Closer]string // connections by the key that they logged in with
}

func newRing(lines []string) *ring {
	return &ring{now: keysIn(lines), ended: map[string]bool{}, open: map[io.Closer]string{}}
}

// keysIn are the keys of lines in OpenSSH's format. Lines with options are passed over, as in holds.
func keysIn(lines []string) map[string]bool {
	out := map[string]bool{}
	for _, line := range lines {
		for rest := []byte(line); len(rest) > 0; {
			key, _, options, next, err := ssh.ParseAuthorizedKey(rest)
			if err != nil {
				break
			}
			if len(options) == 0 {
				out[string(key.Marshal())] = true
			}
			rest = next
		}
	}
	return out
}

// admits reports whether the platform lets a key in, and whether the user's own file may do so instead.
func (r *ring) admits(key string) (yes, ask bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now[key], !r.ended[key] && len(r.ended) < maxEnded
}

// enter notes a connection; it fails when its key was taken away while it logged in.
func (r *ring) enter(c io.Closer, key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended[key] {
		return false
	}
	r.open[c] = key
	return true
}

func (r *ring) leave(c io.Closer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, c)
}

// set replaces the keys that are let in and ends what logged in with one that is no more.
func (r *ring) set(lines []string) (ended int) {
	next := keysIn(lines)
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.now {
		if !next[key] {
			r.ended[key] = true
		}
	}
	for key := range next {
		delete(r.ended, key)
	}
	r.now = next
	for c, key := range r.open {
		if r.ended[key] {
			_ = c.Close() // its server sees that
			delete(r.open, c)
			ended++
		}
	}
	return ended
}

// SetKeys replaces the keys that the platform lets in, and returns how many connections ended with theirs. Keys that were taken away are
// removed from the file of keys in the home, too, where the platform wrote them when the session started; they are refused even if that
// fails.
func (s *Server) SetKeys(lines []string) (ended int) {
	ended = s.ring.set(lines)
	err := proc.AsUser(s.cfg.User, s.clean)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.cfg.Log.Info("keys that were taken away stay in ~/.ssh/authorized_keys and are refused all the same", "err", err)
	}
	return ended
}

// clean removes keys that were taken away from the file in the home. A file that lies in a folder is the user's own affair: other sessions
// use it, too.
func (s *Server) clean() error {
	file := filepath.Join(s.cfg.Home, ".ssh/authorized_keys")
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var home, own syscall.Stat_t
	if err := errors.Join(syscall.Stat(s.cfg.Home, &home), syscall.Fstat(int(f.Fd()), &own)); err != nil {
		return err
	}
	if own.Mode&syscall.S_IFMT != syscall.S_IFREG || own.Dev != home.Dev || own.Size > maxKeys {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeys))
	if err != nil {
		return err
	}
	var out []byte
	for line := range bytes.Lines(text) {
		key, _, _, _, err := ssh.ParseAuthorizedKey(line)
		if err == nil {
			if _, ask := s.ring.admits(string(key.Marshal())); !ask {
				continue
			}
		}
		out = append(out, line...)
	}
	if len(out) == len(text) {
		return nil
	}
	tmp := file + ".new"
	_ = os.Remove(tmp) // of a change that was cut short
	n, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	_, err = n.Write(out)
	if err = errors.Join(err, n.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}
