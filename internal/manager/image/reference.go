package image

import (
	"regexp"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
)

// ofSessions begins the references of images that were made of sessions: local/<owner's id>/<name>:<tag>. Nothing else may be
// called so.
const ofSessions = authz.LocalRegistry + "/"

// CommitReference names an image that is made of a session of a user. References of different users never meet.
func CommitReference(owner cluster.UserID, name, tag string) string {
	word := func(text, otherwise string) string {
		if text = imageWord(text); text == "" {
			return otherwise
		}
		return text
	}
	return ofSessions + string(owner) + "/" + word(name, "session") + ":" + word(tag, "latest")
}

// digests are content ids: what names exactly one image wherever it lies.
var digests = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// splitReference takes a reference apart: "registry/project/name:tag". A first part with a dot, a colon or "localhost" is
// a registry; without one the image is local to the engines that have it.
func splitReference(ref string) (registry, project, name, tag string) {
	registry, tag = authz.LocalRegistry, "latest"
	rest := ref
	if first, after, ok := strings.Cut(ref, "/"); ok && (strings.ContainsAny(first, ".:") || first == "localhost") {
		registry, rest = first, after
	}
	if i := strings.LastIndexByte(rest, ':'); i >= 0 {
		rest, tag = rest[:i], rest[i+1:]
	}
	if i := strings.LastIndexByte(rest, '/'); i >= 0 {
		return registry, rest[:i], rest[i+1:], tag
	}
	return registry, "", rest, tag
}

// imageWord makes a part of an image reference of any text.
func imageWord(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, text)
	for strings.Contains(text, "--") || strings.Contains(text, "..") {
		text = strings.ReplaceAll(strings.ReplaceAll(text, "--", "-"), "..", ".")
	}
	text = strings.ReplaceAll(strings.ReplaceAll(text, ".-", "."), "-.", ".")
	return strings.Trim(text[:min(len(text), 100)], "-.")
}
