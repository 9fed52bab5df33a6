package volume

import (
	"path"
	"strings"
	"unicode/utf8"

	"berth.dev/berth/internal/fault"
)

// The bounds of Linux file systems.
const (
	maxName = 255
	maxPath = 4096
)

// CleanPath turns what a client calls a path inside a folder ("./a//b/", "a/b", ".", "") into the form that
// trees take. It refuses what could mean another place or could not be a file: absolute paths, "..", NUL,
// invalid UTF-8 and names that are too long.
func CleanPath(p string) (string, error) {
	bad := func(why string) error {
		return fault.Invalidf("path %q is not allowed: %s", fault.Clip(p, maxEcho), why).WithReason("invalid-api-params").
			WithNext("use a relative path inside the folder, for example data/train.csv")
	}
	switch {
	case len(p) > maxPath:
		return "", bad("it is longer than 4096 bytes")
	case strings.ContainsRune(p, 0):
		return "", bad("it contains a NUL byte")
	case !utf8.ValidString(p):
		return "", bad("it is not valid UTF-8")
	case strings.HasPrefix(p, "/"):
		return "", bad("it is absolute")
	}
	for name := range strings.SplitSeq(p, "/") {
		if name == ".." {
			return "", bad(`it contains ".."`)
		}
		if len(name) > maxName {
			return "", bad("a name in it is longer than 255 bytes")
		}
	}
	return path.Clean("./" + p), nil
}

// maxEcho bounds what is repeated of text that others sent.
const maxEcho = 120

// CheckID tells whether id may name an unfinished upload or a journal: 1 to 64 letters, digits, '-' and '_'.
func CheckID(id string) error {
	ok := id != "" && len(id) <= 64
	for _, c := range []byte(id) {
		ok = ok && (c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-' || c == '_')
	}
	if !ok {
		return fault.Invalidf("%q is no id: it takes 1 to 64 letters, digits, '-' and '_'", fault.Clip(id, maxEcho)).
			WithReason("invalid-api-params")
	}
	return nil
}
