package list

import (
	"slices"
	"strings"
)

// maxTrigrams bounds how many trigrams of one pattern are looked up; what they leave over is compared with the pattern itself.
const maxTrigrams = 16

// Trigrams says that an index holds the trigrams of a field of texts, as the SQL function name_trigrams makes them. cond is a condition
// that holds of every row whose field has all trigrams of %s, an array of texts; it may hold of others. Patterns are looked up there,
// however they begin, unless no three of their characters stand together.
func (f Field) Trigrams(cond string) Field {
	f.trigrams = cond
	return f
}

// lookUp adds to a comparison with a pattern what the index of trigrams says of it.
func (f Field) lookUp(b *Builder, comparison, op, pattern string) string {
	if f.trigrams == "" {
		return comparison
	}
	found := trigrams(op, pattern)
	if len(found) == 0 {
		return comparison
	}
	return "(" + comparison + " AND " + strings.ReplaceAll(f.trigrams, "%s", b.Arg(found)+"::text[]") + ")"
}

// trigrams are such that every text which matches the pattern has them all, in small letters. Characters beyond ASCII are left out,
// because what their small letters are depends on the database.
func trigrams(op, pattern string) (out []string) {
	for _, run := range literals(op, pattern) {
		for i := range max(len(run)-2, 0) {
			if three := run[i : i+3]; !slices.Contains(out, three) && len(out) < maxTrigrams {
				out = append(out, three)
			}
		}
	}
	return out
}

// literals are the pieces of ASCII that a matching text has, in small letters: what stands between wildcards and other characters.
func literals(op, pattern string) (out []string) {
	var run []byte
	end := func() {
		out, run = append(out, string(run)), run[:0]
	}
	for i := 0; i < len(pattern); i++ {
		c := pattern[i]
		switch {
		case op != "contains" && (c == '%' || c == '_'), c >= 0x80:
			end()
			continue
		case op != "contains" && c == '\\' && i+1 < len(pattern):
			if i++; pattern[i] >= 0x80 {
				end()
				continue
			}
			c = pattern[i]
		}
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		run = append(run, c)
	}
	end()
	return out
}
