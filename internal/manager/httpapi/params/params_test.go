package params_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/httpapi/params"
)

func TestSpans(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"90": 90 * time.Second, "90s": 90 * time.Second, "10m": 10 * time.Minute, "1.5h": 90 * time.Minute, "2d": 48 * time.Hour, "": 0,
	} {
		p := params.New(nil, map[string]any{"x": text})
		require.Equal(t, want, p.Span("x"), text)
		require.NoError(t, p.Err(), text)
	}
	for _, text := range []string{"m", "ten", "-5", "1e400", "99999w", "NaN"} {
		p := params.New(nil, map[string]any{"x": text})
		p.Span("x")
		require.Error(t, p.Err(), text)
	}
}

// TestComplaints: what cannot be read is told at once, inner objects by their place.
func TestComplaints(t *testing.T) {
	t.Parallel()
	p := params.New(nil, map[string]any{"n": "x", "list": []any{map[string]any{"flag": "maybe"}}})
	require.Equal(t, 3, p.Number("n", 3, 0, 9))
	for _, one := range p.Objects("list") {
		require.False(t, one.Flag("flag", false))
	}
	p.Within("options", map[string]any{"id": "no"}).UUID("id")
	err := p.Err()
	require.True(t, fault.Is(err, fault.Invalid))
	for _, name := range []string{"n: ", "list[0].flag: ", "options.id: "} {
		require.ErrorContains(t, err, name)
	}
}
