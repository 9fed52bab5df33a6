// Package mountflag reads how the command line writes mounts. It decides nothing about them and asks nobody; package cli
// calls it.
package mountflag

import (
	"fmt"
	"strings"

	"berth.dev/berth/api"
)

// Mount is a folder, or a directory of one, in a session.
type Mount struct {
	// Source is the name or id of a folder, optionally with /sub/dir.
	Source string
	// Target is a path in the container; "" is the default.
	Target string
	// Permission is ro, rw, wd or "".
	Permission string
}

// Parse reads NAME, NAME=TARGET, NAME:TARGET, each with :ro, :rw or :wd at the end, and
// type=bind,source=NAME,target=TARGET,perm=ro. A backslash takes the meaning from the ':', '=' or ',' that follows.
func Parse(text string) (Mount, error) {
	wrong := func(why string) error {
		return fmt.Errorf("%q: %s", text, why)
	}
	var m Mount
	if fields := cutAll(text, ','); len(fields) > 1 || strings.HasPrefix(text, "type=") || strings.HasPrefix(text, "source=") {
		for _, f := range fields {
			kv := cutAll(f, '=')
			if len(kv) != 2 {
				return m, wrong(f + " is not of the form NAME=VALUE")
			}
			value := unescape(kv[1])
			switch kv[0] {
			case "type":
				if value != "bind" {
					return m, wrong("the only type is bind")
				}
			case "source", "src":
				m.Source = value
			case "target", "dst":
				m.Target = value
			case "perm", "permission":
				m.Permission = map[string]string{"readonly": api.PermReadOnly}[value]
				if m.Permission == "" {
					m.Permission = value
				}
			default:
				return m, wrong("there is no option " + kv[0])
			}
		}
	} else {
		parts := cutAll(text, ':')
		if last := parts[len(parts)-1]; len(parts) > 1 && isPermission(last) {
			if len(parts) == 2 && len(cutAll(parts[0], '=')) == 1 {
				return m, wrong("it has no target before the " + last)
			}
			m.Permission, parts = last, parts[:len(parts)-1]
		}
		if len(parts) == 1 {
			parts = cutAll(parts[0], '=')
		}
		if len(parts) > 2 {
			return m, wrong("it has too many parts")
		}
		m.Source = unescape(parts[0])
		if len(parts) == 2 {
			m.Target = unescape(parts[1])
			if m.Target == "" {
				return m, wrong("the target is empty")
			}
		}
	}
	switch {
	case m.Source == "":
		return m, wrong("it names no folder")
	case strings.HasPrefix(m.Source, "/"), strings.HasPrefix(m.Source, "./"), strings.HasPrefix(m.Source, ".."):
		return m, wrong("directories of this machine cannot be mounted, only folders")
	case m.Permission != "" && !isPermission(m.Permission):
		return m, wrong("the permission is one of ro, rw and wd")
	}
	return m, nil
}

func isPermission(s string) bool {
	return s == api.PermReadOnly || s == api.PermReadWrite || s == api.PermReadWriteDelete
}

// cutAll splits at a separator that no backslash precedes.
func cutAll(s string, sep byte) []string {
	var parts []string
	start := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case sep:
			parts = append(parts, s[start:i])
			start = i + 1
		}
	}
	return append(parts, s[start:])
}

var unescape = strings.NewReplacer(`\:`, ":", `\=`, "=", `\,`, ",").Replace
