package fault

import "strings"

// Clip shortens text of others, such as a name in a request or an answer of a server, before it is repeated in an error or a log: to
// most bytes and a sign that more followed. What is shortened is valid UTF-8 in the end.
func Clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
