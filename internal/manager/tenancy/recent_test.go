package tenancy_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/tenancy"
)

func TestActorsAreBelievedForAMomentAndForgottenAtOnce(t *testing.T) {
	t.Parallel()
	var late atomic.Int64
	began := time.Now()
	w := managertest.New(t, func(d *nouns.Deps) { d.Clock = func() time.Time { return began.Add(time.Duration(late.Load())) } })
	ctx := t.Context()
	key := w.Stranger("someone").AccessKey
	refused := func(svc *tenancy.Service) bool {
		_, _, err := svc.Authenticate(ctx, key)
		require.True(t, err == nil || fault.Is(err, fault.Unauthenticated), "%v", err)
		return err != nil
	}
	require.False(t, refused(w.Tenancy))

	// A change of which nothing was heard counts after a second.
	set := func(active bool) {
		w.Exec("UPDATE keypairs SET is_active = $2 WHERE access_key = $1", key, active)
	}
	set(false)
	late.Add(int64(time.Second))
	require.True(t, refused(w.Tenancy), "an answer was believed for too long")
	set(true)
	require.False(t, refused(w.Tenancy), "a refusal was remembered")

	// A change through this manager counts at once; another manager hears of it soon, without its clock moving.
	other, err := tenancy.New(tenancy.Deps{Store: w.Store, Seal: w.Deps.Seal, Clock: func() time.Time { return began }, Log: w.Deps.Log})
	require.NoError(t, err)
	octx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = other.Run(octx) }()
	t.Cleanup(func() { stop(); <-ended })
	require.False(t, refused(other))
	set(false)
	require.NoError(t, w.Tenancy.UpdateFullName(ctx, w.Admin, "", "Ada")) // any change of anybody forgets all
	require.True(t, refused(w.Tenancy))
	managertest.Soon(t, "the other manager hears of the change", func() bool {
		if refused(other) {
			return true
		}
		// The other one may have begun to listen after the hint.
		require.NoError(t, w.Tenancy.UpdateFullName(ctx, w.Admin, "", "Ada"))
		return false
	})
	a, _, err := w.Tenancy.Authenticate(ctx, w.Admin.AccessKey)
	require.NoError(t, err)
	require.Equal(t, "Ada", a.FullName)
}

// Requests go on with remembered actors: a new statement that writes what Authenticate reads is listed here once
// its use case calls forgetActors after the commit.
func TestEveryStatementThatChangesActorsIsKnown(t *testing.T) {
	t.Parallel()
	known := []string{
		"SetFullName", // its use case forgets
		// Nothing of these is in an authz.Actor, or nobody can have asked for the new row before.
		"AddDomain", "AddUser", "AddKeypair", "AddMember", "TouchKeypair", "SetPassword", "SetPasswordHash", "SetSSHKeypair",
		"SetKeypairDotfiles", "SetDomainDotfiles", "SetBootstrapScript", "AllowFirstHosts", "SetHostsOfDomain",
	}
	writes := regexp.MustCompile(`(?i)\b(INSERT INTO|UPDATE|DELETE FROM)\s+(domains|users|keypairs|project_members)\b`)
	statement := regexp.MustCompile(`(?m)^-- name: (\w+)`)
	files, err := filepath.Glob("../store/queries/*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	seen := 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		at := statement.FindAllSubmatchIndex(text, -1)
		for i, m := range at {
			end := len(text)
			if i+1 < len(at) {
				end = at[i+1][0]
			}
			if !writes.Match(text[m[0]:end]) {
				continue
			}
			name := string(text[m[2]:m[3]])
			require.Contains(t, known, name, "statement %s changes what requests remember of their callers: call s.forgetActors() after its commit and list it here", name)
			seen++
		}
	}
	require.Positive(t, seen)
}
