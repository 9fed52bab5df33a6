package operation_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/operation"
)

func report(message string) operation.ErrorReport {
	return operation.ErrorReport{Severity: "error", Source: "a test", Message: message, Language: "en"}
}

// Reports are bounded, one by one and all together, and what is bad is refused whole.
func TestErrorReportsAreBounded(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx, o := t.Context(), w.Operations
	for what, change := range map[string]func(*operation.ErrorReport){
		"severity":       func(r *operation.ErrorReport) { r.Severity = "fatal" },
		"no message":     func(r *operation.ErrorReport) { r.Message = "" },
		"no source":      func(r *operation.ErrorReport) { r.Source = "" },
		"long message":   func(r *operation.ErrorReport) { r.Message = strings.Repeat("x", 8<<10+1) },
		"long traceback": func(r *operation.ErrorReport) { r.Traceback = new(strings.Repeat("x", 32<<10+1)) },
		"no text":        func(r *operation.ErrorReport) { r.Message = "a\x00b" },
		"no object":      func(r *operation.ErrorReport) { r.Context = json.RawMessage(`[1]`) },
		"null":           func(r *operation.ErrorReport) { r.Context = json.RawMessage(`null`) },
		"no JSON":        func(r *operation.ErrorReport) { r.Context = json.RawMessage(`{`) },
		"long context": func(r *operation.ErrorReport) {
			r.Context = json.RawMessage(`{"a":"` + strings.Repeat("x", 8<<10) + `"}`)
		},
		"status": func(r *operation.ErrorReport) { r.RequestStatus = new(1000) },
	} {
		r := report("m")
		change(&r)
		require.True(t, fault.Is(o.ReportError(ctx, w.Admin, r), fault.Invalid), what)
	}
	require.True(t, fault.Is(o.ReportError(ctx, authz.Actor{}, report("m")), fault.Denied))
	_, total, err := o.ErrorLogs(ctx, w.Admin, 1, 10, false)
	require.NoError(t, err)
	require.Zero(t, total)

	w.Exec(`INSERT INTO error_logs (id, user_id, created_at, severity, source, message, context_lang, context_env)
SELECT gen_random_uuid(), $1, now() - interval '1 day', 'error', 's', 'old ' || i, '', '{}' FROM generate_series(1, 499) i`, w.Admin.UserID)
	require.NoError(t, o.ReportError(ctx, w.Admin, report("first")))
	require.NoError(t, o.ReportError(ctx, w.Admin, report("second")))
	found, total, err := o.ErrorLogs(ctx, w.Admin, 1, 2, true)
	require.NoError(t, err)
	require.Equal(t, 500, total, "the oldest is forgotten")
	require.Equal(t, []string{"second", "first"}, []string{found[0].Message, found[1].Message})
	require.False(t, found[0].Read, "it was not before")
	found, _, err = o.ErrorLogs(ctx, w.Admin, 1, 3, false)
	require.NoError(t, err)
	require.Equal(t, []bool{true, true, false}, []bool{found[0].Read, found[1].Read, found[2].Read})
	require.NoError(t, o.ClearError(ctx, w.Admin, found[0].ID))
	require.True(t, fault.Is(o.ClearError(ctx, w.Admin, found[0].ID), fault.NotFound))
	require.True(t, fault.Is(o.ClearError(ctx, w.Admin, "x"), fault.NotFound))
	for _, page := range [][2]int{{0, 10}, {1, 0}, {1, 101}, {1 << 40, 10}} {
		_, _, err := o.ErrorLogs(ctx, w.Admin, page[0], page[1], false)
		require.True(t, fault.Is(err, fault.Invalid), "%v", page)
	}
}

// A monitor reads everybody's and marks none as read.
func TestMonitorsMarkNoErrorAsRead(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	require.NoError(t, w.Operations.ReportError(t.Context(), w.Admin, report("m")))
	monitor := authz.Actor{UserID: "00000000-0000-4000-8000-000000000001", AccessKey: "AKIAM", Domain: "default", Role: authz.RoleMonitor}
	for range 2 {
		found, total, err := w.Operations.ErrorLogs(t.Context(), monitor, 1, 10, true)
		require.NoError(t, err)
		require.Equal(t, 1, total)
		require.False(t, found[0].Read)
	}
}

// Superadmins announce, everybody reads it; what is too long or no text is refused and the old one stays.
func TestAnnouncements(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx, o := t.Context(), w.Operations
	user := w.Admin
	user.Role = authz.RoleUser
	require.True(t, fault.Is(o.SetAnnouncement(ctx, user, true, new("mine")), fault.Denied))
	require.True(t, fault.Is(o.SetAnnouncement(ctx, w.Admin, true, nil), fault.Invalid), "there is no text yet")
	require.NoError(t, o.SetAnnouncement(ctx, w.Admin, true, new("closed on Monday")))
	for _, bad := range []string{strings.Repeat("x", 16<<10+1), "a\x00b"} {
		require.True(t, fault.Is(o.SetAnnouncement(ctx, w.Admin, true, &bad), fault.Invalid))
	}
	shown := func() string {
		_, text, err := o.Announcement(ctx)
		require.NoError(t, err)
		return text
	}
	require.Equal(t, "closed on Monday", shown())
	require.NoError(t, o.SetAnnouncement(ctx, w.Admin, false, nil))
	require.Empty(t, shown())
	require.NoError(t, o.SetAnnouncement(ctx, w.Admin, true, nil), "the text is kept")
	require.Equal(t, "closed on Monday", shown())
}
