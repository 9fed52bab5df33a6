package embedded

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/klauspost/compress/zstd"
)

// unpackBundle puts the bundled PostgreSQL below stateDir/lib once per content and returns its
// bin directory. Concurrent callers wait for one another; a half-unpacked tree never counts.
func unpackBundle(stateDir string) (string, error) {
	lib := filepath.Join(stateDir, "lib")
	if err := os.MkdirAll(lib, 0o755); err != nil {
		return "", err
	}
	sum := sha256.Sum256(pgBundle)
	home := filepath.Join(lib, "postgres-"+hex.EncodeToString(sum[:8]))
	bin := filepath.Join(home, "bin")
	lock, err := os.OpenFile(filepath.Join(lib, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close() // releases the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	fresh := home + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return "", err
	}
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return "", err
	}
	if err := extract(bytes.NewReader(pgBundle), fresh); err != nil {
		return "", err
	}
	return bin, os.Rename(fresh, home)
}

// extract unpacks a zstd-compressed tar of directories, files and relative links below dir.
func extract(r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	zr, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer zr.Close()
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Clean(h.Name)
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeSymlink:
			err = root.Symlink(h.Linkname, name)
		case tar.TypeReg:
			err = writeEntry(root, name, fs.FileMode(h.Mode)&0o755, tr)
		default:
			err = fmt.Errorf("%s has unexpected type %q", h.Name, h.Typeflag)
		}
		if err != nil {
			return fmt.Errorf("unpack %s: %w", h.Name, err)
		}
	}
}

func writeEntry(root *os.Root, name string, mode fs.FileMode, r io.Reader) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
