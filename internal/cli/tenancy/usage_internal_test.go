package tenancy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api/admin"
)

// No cell of an export is a formula to a spreadsheet.
func TestCellsAreHarmless(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "", "a": "a", "=1+1": "'=1+1", "+1": "'+1", "-1": "'-1", "@SUM(A1)": "'@SUM(A1)",
		"\tx": "'\tx",
		"\rx": "'\rx", " =1": " =1", "ß": "ß", "2.50": "2.50"} {
		require.Equal(t, want, harmless(in))
	}
}

func TestUsagePeriods(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for _, c := range []struct {
		o    usageOptions
		want admin.UsageQuery
	}{
		{usageOptions{by: "user"}, admin.UsageQuery{By: "user", Month: "202603"}},
		{usageOptions{month: "2025-12"}, admin.UsageQuery{Month: "202512"}},
		{usageOptions{since: "2026-03-01T00:00:00Z"}, admin.UsageQuery{Since: "2026-03-01T00:00:00Z", Until: "2026-03-04T05:06:07Z"}},
		{usageOptions{since: "2026-03-01T00:00:00Z", until: "2026-03-02T01:00:00+01:00"},
			admin.UsageQuery{Since: "2026-03-01T00:00:00Z", Until: "2026-03-02T00:00:00Z"}},
	} {
		got, err := c.o.query(now)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	for _, bad := range []usageOptions{{month: "2026"}, {month: "2026-13"}, {month: "2026-01", since: "2026-01-01"}, {until: "2026-01-01"},
		{since: "yesterday"}} {
		_, err := bad.query(now)
		require.Error(t, err)
	}
}
