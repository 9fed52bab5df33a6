package folder

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

const maxName = 64 // characters of a folder's name

var (
	// nameText leaves the length to maxName: a count of these classes would be compiled into megabytes.
	nameText = regexp.MustCompile(`^[\p{L}\p{N}._-][\p{L}\p{N} ._+@()~-]*$`)
	// dotNames are files that programs read from the home directory: a folder there would break them.
	dotNames = regexp.MustCompile(`^\.(\w+rc|\w+_profile)$`)
)

// reserved are names that no folder and no target may have below the home directory.
var reserved = []string{".terminfo", ".jupyter", ".tmux.conf", ".ssh"}

// systemDirs belong to the image: nothing is mounted over them.
var systemDirs = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root",
	"/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/var", "/home"}

// checkName reports whether a folder may have the name; dot-names are for user folders of general use.
func checkName(name string, of Ownership, usage UsageMode) error {
	bad := func(why string) error {
		return fault.Invalidf("a folder cannot be called %.80q: %s", name, why).
			WithNext("use 1 to 64 letters, digits, spaces and . _ - + @ ( ) ~")
	}
	switch {
	case utf8.RuneCountInString(name) > maxName, !nameText.MatchString(name):
		return bad("it is too long or has other characters than allowed")
	case strings.Trim(name, ".") == "", strings.HasSuffix(name, " "):
		return bad("it consists of dots or ends with a space")
	case slices.Contains(reserved, name), dotNames.MatchString(name), slices.Contains(systemDirs, "/"+name):
		return bad("the name is reserved")
	case name == "_": // addresses have it for what belongs to no folder
		return bad("the name is reserved")
	}
	if _, ok := cluster.CanonicalUUID(name); ok {
		return bad("it looks like the id of a folder")
	}
	if strings.HasPrefix(name, ".") && (of != OfUser || usage != UsageGeneral) {
		return fault.Invalidf("%s cannot be the name of a project folder or of one for models or data", name).
			WithNext("names with a leading dot are for user folders of general use, which are mounted into all sessions of their owner")
	}
	return nil
}

// filePath cleans a path inside a folder as clients write it: a/b, ./a/b and /a/b are the same. "." is the folder itself.
func filePath(text string) (string, error) {
	if len(text) > 4096 || strings.ContainsRune(text, 0) {
		return "", fault.Invalidf("a path inside a folder has 1 to 4096 bytes and no zero byte")
	}
	if slices.Contains(strings.Split(text, "/"), "..") {
		return "", fault.Invalidf("the path %.200q leaves its folder", text).WithNext("write it without ..")
	}
	return strings.TrimPrefix(path.Clean("/"+text), "/") + dotIfEmpty(text), nil
}

func dotIfEmpty(text string) string {
	if path.Clean("/"+text) == "/" {
		return "."
	}
	return ""
}

// somePath is filePath of something inside the folder.
func somePath(text string) (string, error) {
	p, err := filePath(text)
	if err == nil && p == "." {
		return "", fault.Invalidf("this needs the path of something inside the folder")
	}
	return p, err
}

func somePaths(texts []string, most int) ([]string, error) {
	if len(texts) == 0 || len(texts) > most {
		return nil, fault.Invalidf("this takes 1 to %d paths, not %d", most, len(texts))
	}
	out := make([]string, len(texts))
	for i, t := range texts {
		p, err := somePath(t)
		if err != nil {
			return nil, err
		}
		out[i] = p
	}
	return out, nil
}
