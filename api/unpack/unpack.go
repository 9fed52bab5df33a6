// Package unpack writes what hostile archives hold below a directory. Package api calls it for downloads from sessions.
package unpack

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

const (
	// Most bounds what one download writes, in bytes.
	Most = 64 << 30
	// maxEntries bounds the members of one archive.
	maxEntries = 1 << 20
)

// Tar writes the members of an archive below dest. The archive comes from a
// session and is hostile: names that leave dest, links that lead out of it, devices
// and anything else that is no file, directory or symbolic link are refused. left is
// what may still be written.
func Tar(r io.Reader, dest *os.Root, left *int64, seen func(name string, size int64)) error {
	archive := tar.NewReader(r)
	for range maxEntries {
		h, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if !Local(strings.TrimSuffix(h.Name, "/")) {
			return fmt.Errorf("refuse member %q: its path leaves the destination", h.Name)
		}
		if h.Size > *left {
			return fmt.Errorf("refuse member %q: the download is larger than %d GiB", h.Name, Most>>30)
		}
		*left -= h.Size
		if err := extractMember(archive, h, dest); err != nil {
			return err
		}
		if seen != nil && h.Typeflag != tar.TypeDir {
			seen(path.Clean(h.Name), h.Size)
		}
	}
	return fmt.Errorf("refuse archive: it has more than %d members", maxEntries)
}

func extractMember(body io.Reader, h *tar.Header, dest *os.Root) error {
	name := path.Clean(h.Name)
	mode := h.FileInfo().Mode().Perm()
	if dir := path.Dir(name); dir != "." && h.Typeflag != tar.TypeDir {
		if err := dest.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("write %q: %w", name, err)
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := dest.MkdirAll(name, 0o700|mode); err != nil {
			return fmt.Errorf("write %q: %w", name, err)
		}
		return nil
	case tar.TypeReg:
		return extractFile(body, name, mode, dest)
	case tar.TypeSymlink:
		// A link is judged from where it stands; os.Root would refuse to follow a bad
		// one, but other programs would not.
		if strings.HasPrefix(h.Linkname, "/") || !Local(path.Join(path.Dir(name), h.Linkname)) {
			return fmt.Errorf("refuse link %q: its target %q leaves the destination", name, h.Linkname)
		}
		if err := dest.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("write link %q: %w", name, err)
		}
		if err := dest.Symlink(h.Linkname, name); err != nil {
			return fmt.Errorf("write link %q: %w", name, err)
		}
		return nil
	}
	return fmt.Errorf("refuse member %q: type %q is no file, directory or symbolic link", h.Name, h.Typeflag)
}

func extractFile(body io.Reader, name string, mode fs.FileMode, dest *os.Root) (err error) {
	// An existing link is replaced, never written through.
	if info, lerr := dest.Lstat(name); lerr == nil && !info.Mode().IsRegular() && !info.IsDir() {
		if err := dest.Remove(name); err != nil {
			return fmt.Errorf("replace %q: %w", name, err)
		}
	}
	f, err := dest.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode|0o600)
	if err != nil {
		return fmt.Errorf("write %q: %w", name, err)
	}
	defer func() {
		if cerr := f.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("write %q: %w", name, cerr)
		}
	}()
	if _, err := io.Copy(f, body); err != nil {
		return fmt.Errorf("write %q: %w", name, err)
	}
	return nil
}

// Local reports whether p is relative and has no way out.
func Local(p string) bool {
	if p == "" || strings.HasPrefix(p, "/") || strings.ContainsAny(p, "\x00\\") {
		return false
	}
	clean := path.Clean(p)
	return clean != ".." && !strings.HasPrefix(clean, "../")
}
