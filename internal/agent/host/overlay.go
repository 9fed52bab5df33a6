package host

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Passwd returns an image's passwd file with the session's user first, so that its number
// maps to its name even where the image has another user of that number.
func Passwd(image []byte, uid, gid int, shell string) []byte {
	if shell == "" {
		shell = "/bin/sh"
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s:x:%d:%d::%s:%s\n", UserName, uid, gid, Home, shell)
	hasRoot := false
	for _, line := range lines(image) {
		name, _, _ := strings.Cut(line, ":")
		if name == UserName {
			continue
		}
		hasRoot = hasRoot || name == "root"
		out.WriteString(line + "\n")
	}
	if !hasRoot {
		out.WriteString("root:x:0:0:root:/root:/bin/sh\n")
	}
	return out.Bytes()
}

// Group returns an image's group file with the user's group first and the extra groups.
func Group(image []byte, gid int, extra []int) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s:x:%d:\n", UserName, gid)
	named := []int{gid}
	hasRoot := false
	for _, line := range lines(image) {
		f := strings.Split(line, ":")
		if f[0] == UserName || len(f) < 4 {
			continue
		}
		hasRoot = hasRoot || f[0] == "root"
		if n, err := strconv.Atoi(f[2]); err == nil && slices.Contains(extra, n) && !slices.Contains(named, n) {
			named = append(named, n)
			if f[3] != "" {
				f[3] += ","
			}
			f[3] += UserName
			line = strings.Join(f, ":")
		}
		out.WriteString(line + "\n")
	}
	if !hasRoot {
		out.WriteString("root:x:0:\n")
	}
	for _, n := range extra {
		if !slices.Contains(named, n) {
			named = append(named, n)
			fmt.Fprintf(&out, "group%d:x:%d:%s\n", n, n, UserName)
		}
	}
	return out.Bytes()
}

func lines(b []byte) []string {
	var out []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimRight(line, "\r\n"); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out
}

// Dotfile places a dotfile: relative paths and absolute ones below the home belong into the
// home; everything else is refused, above all paths of the host.
func Dotfile(d cluster.Dotfile) (File, error) {
	p := path.Clean(d.Path)
	if path.IsAbs(p) {
		rel, ok := strings.CutPrefix(p, Home+"/")
		if !ok {
			return File{}, fault.Invalidf("dotfile %q does not belong into %s", d.Path, Home).WithReason("invalid-dotfile").
				WithNext("delete that dotfile or give it a path relative to the home")
		}
		p = rel
	}
	if p == "." || p == ".." || strings.HasPrefix(p, "../") || strings.ContainsRune(p, 0) {
		return File{}, fault.Invalidf("dotfile %q leads out of %s", d.Path, Home).WithReason("invalid-dotfile").
			WithNext("delete that dotfile or give it a path relative to the home")
	}
	mode := uint64(0o644)
	if d.Perm != "" {
		m, err := strconv.ParseUint(d.Perm, 8, 32)
		if err != nil || m > 0o777 {
			return File{}, fault.Invalidf("dotfile %q: permission %q is not three octal digits", d.Path, d.Perm).WithReason("invalid-dotfile").
				WithNext("set its permission to a value such as 644")
		}
		mode = m
	}
	return File{Path: p, Mode: fileMode(mode), Data: []byte(d.Data), Replace: true}, nil
}

func fileMode(m uint64) fs.FileMode { return fs.FileMode(m) & fs.ModePerm }
