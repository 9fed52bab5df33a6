package mountflag

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Mount{
		"data":                         {"data", "", ""},
		"data=/mnt":                    {"data", "/mnt", ""},
		"data:/mnt":                    {"data", "/mnt", ""},
		"data:/mnt:wd":                 {"data", "/mnt", "wd"},
		"data=/mnt:ro":                 {"data", "/mnt", "ro"},
		"data/a/b:x":                   {"data/a/b", "x", ""},
		`a\=b\:c\,d:x`:                 {"a=b:c,d", "x", ""},
		"data:./ro":                    {"data", "./ro", ""},
		".local":                       {".local", "", ""},
		"type=bind,source=a":           {"a", "", ""},
		`source=a\,b,target=/c\=d`:     {"a,b", "/c=d", ""},
		"type=bind,src=a,perm=rw":      {"a", "", "rw"},
		"source=a,permission=readonly": {"a", "", "ro"},
	} {
		m, err := Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, m, text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`a\:b,c=d:ro`)
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Parse(text)
		if err == nil && m.Source == "" {
			t.Fatalf("%q names no folder", text)
		}
	})
}
