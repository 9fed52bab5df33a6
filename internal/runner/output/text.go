package output

import (
	"strings"
	"unicode/utf8"
)

// Decoder turns a stream of bytes into valid UTF-8 text. A character cut in two by the
// end of a chunk waits for its rest; bytes that are no UTF-8 become U+FFFD. The zero value is ready.
type Decoder struct{ rest []byte }

// Decode returns the text that p completes.
func (d *Decoder) Decode(p []byte) string {
	if len(d.rest) > 0 {
		p = append(d.rest, p...)
		d.rest = nil
	}
	cut := len(p)
	for i := len(p) - 1; i >= 0 && i >= len(p)-utf8.UTFMax; i-- {
		if utf8.RuneStart(p[i]) {
			if !utf8.FullRune(p[i:]) {
				cut = i
			}
			break
		}
	}
	if cut < len(p) {
		d.rest = append([]byte(nil), p[cut:]...)
	}
	return strings.ToValidUTF8(string(p[:cut]), "\uFFFD")
}

// Flush returns what still waits, as replacement characters.
func (d *Decoder) Flush() string {
	if len(d.rest) == 0 {
		return ""
	}
	d.rest = nil
	return "\uFFFD"
}

// StripANSI removes terminal escape sequences, which readers of the console would see as noise.
func StripANSI(s string) string {
	if !strings.ContainsRune(s, '\x1b') {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] != '\x1b' {
			b.WriteByte(s[i])
			i++
			continue
		}
		i++
		if i >= len(s) {
			break
		}
		switch s[i] {
		case '[': // control sequence: parameters, then one final byte
			i++
			for i < len(s) && (s[i] < 0x40 || s[i] > 0x7e) {
				i++
			}
			i = min(i+1, len(s))
		case ']': // operating-system command: up to BEL or ESC \
			for i < len(s) && s[i] != '\a' && s[i] != '\x1b' {
				i++
			}
			if i < len(s) && s[i] == '\x1b' {
				i++
			}
			i = min(i+1, len(s))
		default:
			i++
		}
	}
	return b.String()
}
