package list

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var watchedFields = Fields{"status": Enum("s.status", []string{"A", "B", "C"}, map[string]string{"first": "A"}), "name": Text("s.name")}

func TestWhatAFilterLetsAFieldBe(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"":                                       {"A", "B", "C"},
		`name == "x"`:                            {"A", "B", "C"},
		`status != "a" & status != "B"`:          {"C"},
		`status == "first" | status == "C"`:      {"A", "C"},
		`status in ["A", "B"] & name like "x%"`:  {"A", "B"},
		`!(status in ["A", "B"])`:                {"C"},
		`!(status == "A" & name == "x")`:         {"A", "B", "C"},
		`status == "A" | name == "x"`:            {"A", "B", "C"},
		`status == "nothing"`:                    nil,
		`status != "nothing" & STATUS isnot "A"`: {"B", "C"},
		`status like "A%"`:                       {"A", "B", "C"},
		`status == null`:                         {"A", "B", "C"},
		`status in []`:                           nil,
	} {
		c, err := compile(&Builder{}, watchedFields, text, "status")
		require.NoError(t, err, text)
		require.Equal(t, want, c.words, text)
		require.Equal(t, strings.Contains(strings.ToLower(text), "status"), c.narrowed, text)
	}
	// Of a field of more words than are followed nothing is known.
	words := make([]string, 65)
	for i := range words {
		words[i] = fmt.Sprint("w", i)
	}
	c, err := compile(&Builder{}, Fields{"status": Enum("s.status", words, nil)}, `status == "w1"`, "status")
	require.NoError(t, err)
	require.False(t, c.narrowed)
}

// filterNode is a filter that says whether a row meets it.
type filterNode struct {
	text  string
	holds func(status, name string) bool
}

func drawFilter(t *rapid.T, depth int) filterNode {
	kind := rapid.IntRange(0, 6).Draw(t, "kind")
	if depth == 0 {
		kind %= 4
	}
	word := rapid.SampledFrom([]string{"A", "B", "C", "D"}).Draw(t, "word")
	switch kind {
	case 0:
		return filterNode{`status == "` + word + `"`, func(s, _ string) bool { return s == word }}
	case 1:
		return filterNode{`status != "` + word + `"`, func(s, _ string) bool { return s != word }}
	case 2:
		return filterNode{`status in ["` + word + `", "B"]`, func(s, _ string) bool { return s == word || s == "B" }}
	case 3:
		return filterNode{`name == "x"`, func(_, n string) bool { return n == "x" }}
	case 4:
		a := drawFilter(t, depth-1)
		return filterNode{"!(" + a.text + ")", func(s, n string) bool { return !a.holds(s, n) }}
	}
	a, b := drawFilter(t, depth-1), drawFilter(t, depth-1)
	if kind == 5 {
		return filterNode{"(" + a.text + " & " + b.text + ")", func(s, n string) bool { return a.holds(s, n) && b.holds(s, n) }}
	}
	return filterNode{"(" + a.text + " | " + b.text + ")", func(s, n string) bool { return a.holds(s, n) || b.holds(s, n) }}
}

// TestNoRowIsLeftOut: every row that meets a filter has one of the words that the filter is said to allow.
func TestNoRowIsLeftOut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := drawFilter(t, 4)
		c, err := compile(&Builder{}, watchedFields, f.text, "status")
		require.NoError(t, err, f.text)
		for _, status := range []string{"A", "B", "C"} {
			for _, name := range []string{"x", "y"} {
				if f.holds(status, name) {
					require.True(t, slices.Contains(c.words, status), "%s lets the status be %s", f.text, status)
				}
			}
		}
	})
}
