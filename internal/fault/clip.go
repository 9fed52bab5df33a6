package fault

import (
	"strings"
	"unicode/utf8"
)

// Cut is the beginning of a text of at most n bytes, which does not end within a character.
func Cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// Clip shortens text of others, such as a name in a request or an answer of a server, before it is repeated in an error or a
// log: to n bytes at most and a sign that more followed. What is shortened is valid UTF-8 in the end.
func Clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(Cut(text, n), "") + "…"
}
