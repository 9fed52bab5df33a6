package embedded

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/fault"
)

// minMajor is the oldest PostgreSQL that the schema is written for.
const minMajor = 15

// pgBinaries is one installation of the server.
type pgBinaries struct {
	dir     string
	version string // "15.18"
	major   int
}

// findPostgres picks the installation: the configured one, PATH, Debian's directories with the
// highest version first, then the bundle in this binary. Data of a given major version can
// only be served by that version; major 0 means that there are no data yet.
func findPostgres(ctx context.Context, cfg PostgresConfig, major int) (pgBinaries, error) {
	var dirs []string
	if cfg.BinDir != "" {
		dirs = []string{cfg.BinDir}
	} else {
		if path, err := exec.LookPath("postgres"); err == nil {
			if resolved, err := filepath.EvalSymlinks(path); err == nil {
				path = resolved
			}
			dirs = append(dirs, filepath.Dir(path))
		}
		dirs = append(dirs, debianDirs()...)
	}
	var seen []string
	for _, dir := range dirs {
		b, err := inspectPostgres(ctx, dir)
		if err != nil {
			seen = append(seen, err.Error())
			continue
		}
		if b.major >= minMajor && (major == 0 || b.major == major) {
			return b, nil
		}
		seen = append(seen, fmt.Sprintf("%s has %s", dir, b.version))
	}
	if cfg.BinDir == "" && len(pgBundle) > 0 {
		dir, err := unpackBundle(cfg.StateDir)
		if err != nil {
			return pgBinaries{}, fmt.Errorf("unpack bundled PostgreSQL: %w", err)
		}
		b, err := inspectPostgres(ctx, dir)
		if err == nil && (major == 0 || b.major == major) {
			return b, nil
		}
		if err != nil {
			seen = append(seen, err.Error())
		} else {
			seen = append(seen, "the bundle has "+b.version)
		}
	}
	found := "none was found"
	if len(seen) > 0 {
		found = strings.Join(seen, "; ")
	}
	if major != 0 {
		return pgBinaries{}, fault.Unavailablef("the data in %s need PostgreSQL %d: %s", cfg.StateDir, major, found).
			WithReason("postgres-missing").WithNext("install it with: apt-get install postgresql-%d", major)
	}
	return pgBinaries{}, fault.Unavailablef("no PostgreSQL %d or newer: %s", minMajor, found).
		WithReason("postgres-missing").WithNext("install it with: apt-get install postgresql, or build berth with: make build BUNDLE=1")
}

// debianDirs lists /usr/lib/postgresql/*/bin, the highest version first.
func debianDirs() []string {
	dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return nil
	}
	version := func(dir string) int {
		n, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		if err != nil {
			return 0
		}
		return n
	}
	slices.SortFunc(dirs, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
	return dirs
}

func inspectPostgres(ctx context.Context, dir string) (pgBinaries, error) {
	for _, name := range []string{"postgres", "initdb"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode()&0o111 == 0 {
			return pgBinaries{}, fmt.Errorf("%s has no %s", dir, name)
		}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return pgBinaries{}, fmt.Errorf("%s/postgres --version: %w", dir, err)
	}
	fields := strings.Fields(string(out)) // postgres (PostgreSQL) 15.18 (Debian ...)
	if len(fields) < 3 {
		return pgBinaries{}, fmt.Errorf("%s/postgres --version says %q", dir, out)
	}
	head, _, _ := strings.Cut(fields[2], ".")
	major, err := strconv.Atoi(head)
	if err != nil {
		return pgBinaries{}, fmt.Errorf("%s/postgres --version says %q", dir, out)
	}
	return pgBinaries{dir: dir, version: fields[2], major: major}, nil
}
