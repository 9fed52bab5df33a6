package app

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// values are what the texts of a definition may name: a string, a list of strings, or a map of strings.
type values map[string]any

// maxText bounds a text with its values put in, in bytes; maxTexts all texts of a command, of its arguments, or of its
// environment. The kernel passes on no more to a program, with its usual limits.
const (
	maxText  = 1 << 20
	maxTexts = 2 << 20
)

// errTooLong says that texts have more than maxTexts bytes.
var errTooLong = fmt.Errorf("the texts have more than %d bytes with their values put in", maxTexts)

var (
	// braced is {name}, {name[0]}, {name[out]} or {name.out}.
	braced = regexp.MustCompile(`^\{([A-Za-z_][A-Za-z0-9_-]*)((?:\[[^\[\]{}\s]*\]|\.[A-Za-z_][A-Za-z0-9_]*)*)\}`)
	// doubled is ${{ name }} with the same ways to name a part.
	doubled = regexp.MustCompile(`^\$\{\{\s*([A-Za-z_][A-Za-z0-9_-]*)((?:\[[^\[\]{}\s]*\]|\.[A-Za-z_][A-Za-z0-9_]*)*)\s*\}\}`)
	part    = regexp.MustCompile(`\[([^\[\]]*)\]|\.([A-Za-z_][A-Za-z0-9_]*)`)
)

// fill puts values in for {x} and ${{ x }}. Values are taken as they are: what looks like a name inside one is not looked
// up again. Braces around anything that has no value stay, because scripts and JSON have braces of their own; a ${{ x }}
// cannot mean anything else and is an error then.
func (v values) fill(text string) (string, error) {
	var b strings.Builder
	for len(text) > 0 {
		at := strings.IndexAny(text, "{$")
		if at < 0 {
			at = len(text)
		}
		b.WriteString(text[:at])
		text = text[at:]
		if m := doubled.FindStringSubmatch(text); m != nil {
			s, known, err := v.lookup(m[1], m[2])
			if err == nil && !known {
				err = fmt.Errorf("%s is not known there", m[0])
			}
			if err != nil {
				return "", err
			}
			b.WriteString(s)
			text = text[len(m[0]):]
		} else if m := braced.FindStringSubmatch(text); m != nil {
			s, known, err := v.lookup(m[1], m[2])
			if err != nil {
				return "", err
			}
			if !known {
				s = m[0]
			}
			b.WriteString(s)
			text = text[len(m[0]):]
		} else if text != "" {
			b.WriteByte(text[0])
			text = text[1:]
		}
		if b.Len() > maxText {
			return "", fmt.Errorf("a text has more than %d bytes with its values put in", maxText)
		}
	}
	return b.String(), nil
}

func (v values) fillAll(texts []string) ([]string, error) {
	out := make([]string, 0, len(texts))
	total := 0
	for _, t := range texts {
		s, err := v.fill(t)
		if err != nil {
			return nil, err
		}
		if total += len(s); total > maxTexts {
			return nil, errTooLong
		}
		out = append(out, s)
	}
	return out, nil
}

// lookup finds name and then its parts. A name without value is not known; a part that its value lacks is an error.
func (v values) lookup(name, path string) (s string, known bool, err error) {
	at, known := v[name]
	if !known {
		return "", false, nil
	}
	for _, m := range part.FindAllStringSubmatch(path, -1) {
		key := strings.Trim(m[1]+m[2], `'"`)
		switch t := at.(type) {
		case []string:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(t) {
				return "", true, fmt.Errorf("{%s%s}: %s has %d parts, numbered from 0", name, path, name, len(t))
			}
			at = t[i]
		case map[string]string:
			one, ok := t[key]
			if !ok {
				return "", true, fmt.Errorf("{%s%s}: %s has no part %q", name, path, name, key)
			}
			at = one
		default:
			return "", true, fmt.Errorf("{%s%s}: %s has no parts", name, path, name)
		}
	}
	switch t := at.(type) {
	case string:
		return t, true, nil
	case []string:
		return "[" + strings.Join(t, ", ") + "]", true, nil
	case map[string]string:
		return t["out"], true, nil // of a command
	}
	return "", true, nil
}
