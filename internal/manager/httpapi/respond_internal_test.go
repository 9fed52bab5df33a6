package httpapi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
)

func TestClip(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"aé", 2, "a"}, {"日本", 5, "日"}, {"日本", 2, ""}, {"\x80\x80\x80", 2, ""},
	} {
		require.Equal(t, c.want, fault.Cut(c.in, c.n), "%q", c.in)
	}
}
