package sshd

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/crypto/ssh"

	"berth.dev/berth/internal/runner/proc"
)

// SessionKey is the file in the home directory that holds the session's own private key. Clients of the wire download it and log in
// with it; whoever can read it may do so anyway.
const SessionKey = "id_container"

// maxKeys bounds a file of keys.
const maxKeys = 256 << 10

// newKey makes an ed25519 key in the format of OpenSSH.
func newKey(comment string) ([]byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(key, comment)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(block), nil
}

// create writes a new file with mode 0600, whole or not at all; fs.ErrExist when there is one.
func create(file string, content []byte) error {
	tmp := file + ".new"
	_ = os.Remove(tmp) // of a start that was cut short
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Link(tmp, file); err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Rename(tmp, file) // a file system without links
}

// hostKey reads the server's key, making it when it is missing: it outlives the container's restarts.
func hostKey(file string) (ssh.Signer, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		if text, err = newKey(""); err == nil {
			err = create(file, text)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the host key: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("read the host key %s: %w", file, err)
	}
	return signer, nil
}

// EnsureSessionKey makes the session's own key in the home directory when it is missing; an existing file is left as it is.
func EnsureSessionKey(home string, user *proc.Credential) error {
	file := filepath.Join(home, SessionKey)
	err := proc.AsUser(user, func() error {
		if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		text, err := newKey("the session's own key")
		if err != nil {
			return err
		}
		return create(file, text)
	})
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the session's own SSH key: %w", err)
	}
	return nil
}

// authorize decides whether a key may log in. Files are read anew each time, with the user's own permissions: a key that was
// taken away is refused from then on.
func (s *Server) authorize(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	if meta.User() != s.cfg.Name {
		return nil, errors.New("there is no such user in the session")
	}
	want := key.Marshal()
	if s.only != "" {
		return s.amongOnly(string(want))
	}
	with := &ssh.Permissions{Extensions: map[string]string{extKey: string(want)}}
	yes, ask := s.ring.admits(string(want))
	if yes {
		return with, nil
	}
	found := false
	err := proc.AsUser(s.cfg.User, func() error {
		if text, err := readOwn(filepath.Join(s.cfg.Home, SessionKey), s.uid()); err == nil {
			if signer, err := ssh.ParsePrivateKey(text); err == nil && bytes.Equal(signer.PublicKey().Marshal(), want) {
				found = true
				return nil
			}
		}
		if !ask {
			return nil // the platform took it away
		}
		text, err := readOwn(filepath.Join(s.cfg.Home, ".ssh/authorized_keys"), s.uid())
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		found = err == nil && holds(text, want)
		return err
	})
	if found {
		return with, nil
	}
	if err != nil {
		s.cfg.Log.Info("keys in ~/.ssh/authorized_keys are not accepted", "err", err)
	}
	return nil, errors.New("the session does not know this key")
}

func (s *Server) uid() int {
	if s.cfg.User == nil {
		return os.Geteuid()
	}
	return s.cfg.User.UID
}

// holds reports whether lines of authorized keys hold a key. Lines with options are passed over: what they restrict would not be.
func holds(text, want []byte) bool {
	for len(text) > 0 {
		key, _, options, rest, err := ssh.ParseAuthorizedKey(text)
		if err != nil {
			return false // no further key
		}
		if len(options) == 0 && bytes.Equal(key.Marshal(), want) {
			return true
		}
		text = rest
	}
	return false
}

// readOwn reads a file that nobody but the user (and root) can have written, as OpenSSH demands of files of keys.
func readOwn(file string, uid int) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not hold up the log-in
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	st, _ := fi.Sys().(*syscall.Stat_t)
	if !fi.Mode().IsRegular() || fi.Mode().Perm()&0o022 != 0 || st == nil || int(st.Uid) != uid && st.Uid != 0 {
		return nil, fmt.Errorf("%s can be written by others: make it yours with mode 600", file)
	}
	return io.ReadAll(io.LimitReader(f, maxKeys))
}
