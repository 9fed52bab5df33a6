package tree

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// listing describes everything below dir: kinds, modes, times, contents, targets.
func listing(t interface{ Fatal(...any) }, dir string) map[string]string {
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		must(t, err)
		rel, _ := filepath.Rel(dir, p)
		if rel == "." {
			return nil
		}
		var st unix.Stat_t
		must(t, unix.Lstat(p, &st))
		text := fmt.Sprintf("%o %d.%09d", st.Mode, st.Mtim.Sec, st.Mtim.Nsec)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			content, err := os.ReadFile(p)
			must(t, err)
			text += fmt.Sprintf(" %d %x", st.Size, sha256.Sum256(content))
		case unix.S_IFLNK:
			target, err := os.Readlink(p)
			must(t, err)
			text += " " + target
		}
		all[rel] = text
		return nil
	}))
	return all
}

func equal(t *rapid.T, want, got map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Fatalf("%q is %q, want %q", name, got[name], want[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			t.Fatalf("%q is too much", name)
		}
	}
}
