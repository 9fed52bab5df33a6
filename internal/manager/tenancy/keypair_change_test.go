package tenancy_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store/list"
	"berth.dev/berth/internal/manager/tenancy"
)

// signs is the actor that a keypair stands for.
func signs(t *testing.T, w *managertest.World, key cluster.AccessKey) (authz.Actor, seal.Secret) {
	t.Helper()
	a, secret, err := w.Tenancy.Authenticate(t.Context(), key)
	require.NoError(t, err)
	return a, secret
}

// refusedSoon waits until a keypair is let in nowhere.
func refusedSoon(t *testing.T, w *managertest.World, key cluster.AccessKey) {
	t.Helper()
	managertest.Soon(t, string(key)+" is refused", func() bool {
		_, _, err := w.Tenancy.Authenticate(t.Context(), key)
		return fault.Is(err, fault.Unauthenticated)
	})
}

func kindIs(t *testing.T, kind fault.Kind, err error) {
	t.Helper()
	require.Equal(t, kind, fault.KindOf(err), "%v", err)
}

// A user has several keypairs. Only who signs with one is told its secret, besides who made it, once.
func TestSecretsAreShownOnce(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	u, ada := made(t, w, "ada@x")
	k, err := w.Tenancy.CreateKeypair(ctx, w.Admin, "ada@x", tenancy.KeypairProps{RateLimit: new(7), ConcurrencyLimit: new(3)})
	require.NoError(t, err)
	require.NotEmpty(t, k.SecretKey)
	require.Equal(t, 7, k.RateLimit)
	require.Equal(t, 3, k.ConcurrencyLimit)
	require.False(t, k.IsMain)
	second, secret := signs(t, w, k.AccessKey)
	require.Equal(t, k.SecretKey, secret)
	require.Equal(t, 7, second.RateLimit)
	byID, err := w.Tenancy.CreateKeypair(ctx, w.Admin, string(u.ID), tenancy.KeypairProps{})
	require.NoError(t, err)
	require.Equal(t, u.ID, byID.UserID)

	secrets := func(a authz.Actor) (n int) {
		page, err := w.Tenancy.ListKeypairs(ctx, a, tenancy.KeypairFilter{Query: list.Query{Limit: 100}, Email: "ada@x"})
		require.NoError(t, err)
		require.Len(t, page.Items, 3)
		for _, k := range page.Items {
			if k.SecretKey != "" {
				require.Equal(t, a.AccessKey, k.AccessKey)
				n++
			}
		}
		return n
	}
	require.Equal(t, 1, secrets(ada))
	require.Equal(t, 1, secrets(second))
	require.Zero(t, secrets(w.Admin))
}

// A keypair that is made inactive while it is used is refused from then on; its sessions run on.
func TestInactiveKeypairsAreShutOut(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Agent("a1", 8, 16*managertest.GiB)
	_, _ = made(t, w, "ada@x", func(p *tenancy.UserProps) { p.Projects = &[]cluster.ProjectID{projectOf(t, w)} })
	k, err := w.Tenancy.CreateKeypair(ctx, w.Admin, "ada@x", tenancy.KeypairProps{})
	require.NoError(t, err)
	signs(t, w, k.AccessKey)
	id := w.Running("mylab", "a1", func(r *request.Session) { r.OwnerAccessKey = k.AccessKey })
	require.NoError(t, w.Tenancy.ModifyKeypair(ctx, w.Admin, k.AccessKey, tenancy.KeypairProps{IsActive: new(false)}))
	refusedSoon(t, w, k.AccessKey)
	require.Equal(t, cluster.Running, w.Session(id).Status)
	require.NoError(t, w.Tenancy.ModifyKeypair(ctx, w.Admin, k.AccessKey, tenancy.KeypairProps{IsActive: new(true)}))
	managertest.Soon(t, "it is let in again", func() bool {
		_, _, err := w.Tenancy.Authenticate(ctx, k.AccessKey)
		return err == nil
	})
}

func projectOf(t *testing.T, w *managertest.World) cluster.ProjectID {
	t.Helper()
	all, err := w.Tenancy.ListProjects(t.Context(), w.Admin, "default")
	require.NoError(t, err)
	return all[0].ID
}

// Nobody but superadmins sets their own limits, by whatever way.
func TestNobodySetsTheirOwnLimits(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Exec(`INSERT INTO keypair_resource_policies (name) VALUES ('wide')`)
	w.Exec(`INSERT INTO user_resource_policies (name) VALUES ('wide')`)
	u, boss := made(t, w, "boss@x", as(authz.RoleAdmin))
	_, ada := made(t, w, "ada@x")
	wide, err := w.Tenancy.CreateKeypair(ctx, w.Admin, "boss@x", tenancy.KeypairProps{ResourcePolicy: new("wide")})
	require.NoError(t, err)
	for name, p := range map[string]tenancy.KeypairProps{
		"rate": {RateLimit: new(0)}, "policy": {ResourcePolicy: new("wide")}, "is_admin": {IsAdmin: new(false)},
		"concurrency": {ConcurrencyLimit: new(99)},
	} {
		kindIs(t, fault.Denied, w.Tenancy.ModifyKeypair(ctx, boss, boss.AccessKey, p))
		if name != "is_admin" {
			_, err := w.Tenancy.CreateKeypair(ctx, boss, "boss@x", p)
			kindIs(t, fault.Denied, err)
		}
		kindIs(t, fault.Denied, w.Tenancy.ModifyKeypair(ctx, ada, ada.AccessKey, p))
		_, err = w.Tenancy.CreateKeypair(ctx, ada, "ada@x", p)
		kindIs(t, fault.Denied, err)
	}
	for _, p := range []tenancy.UserProps{{MainAccessKey: &wide.AccessKey}, {ResourcePolicy: new("wide")}, {SudoSession: new(true)},
		{AllowedClientIP: &[]string{"0.0.0.0/0"}}} {
		kindIs(t, fault.Denied, w.Tenancy.ModifyUser(ctx, boss, "boss@x", p))
	}
	// What does not change is no change: web clients send the whole form.
	require.NoError(t, w.Tenancy.ModifyUser(ctx, boss, "boss@x", tenancy.UserProps{MainAccessKey: &u.MainAccessKey,
		ResourcePolicy: new("default"), SudoSession: new(false), AllowedClientIP: &[]string{}}))
	another, err := w.Tenancy.CreateKeypair(ctx, boss, "boss@x", tenancy.KeypairProps{})
	require.NoError(t, err)
	require.Equal(t, "default", another.ResourcePolicy)
	require.NoError(t, w.Tenancy.ModifyKeypair(ctx, boss, ada.AccessKey, tenancy.KeypairProps{RateLimit: new(5)}))
	kindIs(t, fault.Invalid, w.Tenancy.ModifyKeypair(ctx, boss, ada.AccessKey, tenancy.KeypairProps{IsAdmin: new(true)}))
	// A superadmin's keypairs are not theirs, nor is there one to be made.
	kindIs(t, fault.NotFound, w.Tenancy.ModifyKeypair(ctx, boss, w.Admin.AccessKey, tenancy.KeypairProps{RateLimit: new(1)}))
	kindIs(t, fault.NotFound, w.Tenancy.DeleteKeypair(ctx, boss, w.Admin.AccessKey))
	_, err = w.Tenancy.RotateKeypair(ctx, boss, w.Admin.AccessKey, 0)
	kindIs(t, fault.NotFound, err)
	for _, user := range []string{w.Admin.Email, "nobody@x"} {
		_, err = w.Tenancy.CreateKeypair(ctx, boss, user, tenancy.KeypairProps{})
		kindIs(t, fault.Denied, err)
	}
}

// A new keypair takes over what hangs on the old one, which holds for the overlap and then ends by itself.
func TestRotationMovesEverything(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Agent("a1", 8, 16*managertest.GiB)
	_, ada := made(t, w, "ada@x", func(p *tenancy.UserProps) { p.Projects = &[]cluster.ProjectID{projectOf(t, w)} })
	ssh, err := w.Tenancy.GenerateSSHKeypair(ctx, ada)
	require.NoError(t, err)
	require.NoError(t, w.Tenancy.SetBootstrapScript(ctx, ada, "echo hi"))
	require.NoError(t, w.Tenancy.CreateDotfile(ctx, ada, tenancy.DotfileScope{}, cluster.Dotfile{Path: ".vimrc", Perm: "644", Data: "x"}))
	require.NoError(t, w.Tenancy.ModifyKeypair(ctx, w.Admin, ada.AccessKey, tenancy.KeypairProps{RateLimit: new(77)}))
	w.Exec(`INSERT INTO resource_groups (name) VALUES ('own')`)
	w.Exec(`INSERT INTO resource_groups_for_keypairs VALUES ('own', $1)`, string(ada.AccessKey))
	id := w.Running("mylab", "a1", func(r *request.Session) { r.OwnerAccessKey = ada.AccessKey })

	k, err := w.Tenancy.RotateKeypair(ctx, ada, "", 24*time.Hour)
	require.NoError(t, err)
	require.NotEmpty(t, k.SecretKey)
	require.True(t, k.IsMain)
	require.Equal(t, 77, k.RateLimit)
	require.Equal(t, ssh.Public, k.SSHPublicKey)
	require.Equal(t, "echo hi", k.BootstrapScript)
	require.Len(t, k.Dotfiles, 1)
	fresh, secret := signs(t, w, k.AccessKey)
	require.Equal(t, k.SecretKey, secret)
	require.Equal(t, k.AccessKey, w.Session(id).AccessKey)
	groups, err := w.Resources.AllowedGroups(ctx, fresh, "")
	require.NoError(t, err)
	require.Len(t, groups, 2)
	w.Exec(`DO $$ BEGIN ASSERT (SELECT ssh_private_sealed FROM keypairs WHERE access_key = '` + string(k.AccessKey) + `') IS NOT NULL; END $$`)
	_, err = tenancy.Reseal(ctx, w.Store, managertest.Key(t)) // opens what is sealed
	require.NoError(t, err)

	// While both hold, either finds the sessions of both by name; the old one's own limits stay.
	old, _ := signs(t, w, ada.AccessKey)
	for _, a := range []authz.Actor{old, fresh} {
		s, err := w.Sessions.Find(ctx, a, "mylab", "")
		require.NoError(t, err)
		require.Equal(t, id, s.ID)
	}
	late := w.Running("later", "a1", func(r *request.Session) { r.OwnerAccessKey = ada.AccessKey })
	s, err := w.Sessions.Find(ctx, fresh, "later", "")
	require.NoError(t, err)
	require.Equal(t, late, s.ID)
	// Whoever has got hold of the old one gets no other by it, and does not see the new one's secret.
	_, err = w.Tenancy.RotateKeypair(ctx, old, k.AccessKey, 0)
	kindIs(t, fault.Denied, err)
	kindIs(t, fault.Denied, w.Tenancy.DeleteKeypair(ctx, old, k.AccessKey))
	shown, err := w.Tenancy.GetKeypair(ctx, old, k.AccessKey)
	require.NoError(t, err)
	require.Empty(t, shown.SecretKey)
	_, err = w.Tenancy.RotateKeypair(ctx, fresh, ada.AccessKey, 0)
	kindIs(t, fault.Conflict, err)

	wait, err := w.Tenancy.EndKeypairs(ctx)
	require.NoError(t, err)
	require.Positive(t, wait)
	signs(t, w, ada.AccessKey)
	w.Exec(`UPDATE keypairs SET expires_at = now() - interval '1 minute' WHERE access_key = $1`, string(ada.AccessKey))
	refusedSoon(t, w, ada.AccessKey)
	_, err = w.Tenancy.EndKeypairs(ctx)
	require.NoError(t, err)
	ended, err := w.Tenancy.GetKeypair(ctx, fresh, ada.AccessKey)
	require.NoError(t, err)
	require.False(t, ended.IsActive)
	require.Equal(t, k.AccessKey, ended.ReplacedBy)
	require.Equal(t, k.AccessKey, w.Session(late).AccessKey)
	kindIs(t, fault.Conflict, w.Tenancy.ModifyKeypair(ctx, w.Admin, ada.AccessKey, tenancy.KeypairProps{IsActive: new(true)}))
	login, err := w.Tenancy.Authorize(ctx, "default", "ada@x", "correct horse")
	require.NoError(t, err)
	require.Equal(t, k.AccessKey, login.AccessKey)
}

// The session of a name that the successor has already stays with the old keypair until that name is free.
func TestSessionsOfOneNameDoNotCollide(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Agent("a1", 8, 16*managertest.GiB)
	_, ada := made(t, w, "ada@x", func(p *tenancy.UserProps) { p.Projects = &[]cluster.ProjectID{projectOf(t, w)} })
	k, err := w.Tenancy.RotateKeypair(ctx, ada, "", time.Hour)
	require.NoError(t, err)
	mine := w.Running("mylab", "a1", func(r *request.Session) { r.OwnerAccessKey = k.AccessKey })
	olds := w.Running("mylab", "a1", func(r *request.Session) { r.OwnerAccessKey = ada.AccessKey })
	w.Exec(`UPDATE keypairs SET expires_at = now() WHERE access_key = $1`, string(ada.AccessKey))
	for range 2 {
		_, err = w.Tenancy.EndKeypairs(ctx)
		require.NoError(t, err)
	}
	require.Equal(t, ada.AccessKey, w.Session(olds).AccessKey)
	require.NoError(t, w.Sessions.Rename(ctx, w.Admin, string(mine), "", "another"))
	_, err = w.Tenancy.EndKeypairs(ctx)
	require.NoError(t, err)
	require.Equal(t, k.AccessKey, w.Session(olds).AccessKey)
}

// What cannot be is refused with words: the main keypair, the one that signs, the last one of superadmins.
func TestKeypairsThatStay(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Agent("a1", 8, 16*managertest.GiB)
	_, ada := made(t, w, "ada@x", func(p *tenancy.UserProps) { p.Projects = &[]cluster.ProjectID{projectOf(t, w)} })
	kindIs(t, fault.Conflict, w.Tenancy.DeleteKeypair(ctx, ada, ada.AccessKey))
	kindIs(t, fault.Conflict, w.Tenancy.DeleteKeypair(ctx, w.Admin, ada.AccessKey))
	kindIs(t, fault.Conflict, w.Tenancy.ModifyKeypair(ctx, w.Admin, w.Admin.AccessKey, tenancy.KeypairProps{IsActive: new(false)}))
	k, err := w.Tenancy.CreateKeypair(ctx, w.Admin, "ada@x", tenancy.KeypairProps{})
	require.NoError(t, err)
	second, _ := signs(t, w, k.AccessKey)
	kindIs(t, fault.Conflict, w.Tenancy.DeleteKeypair(ctx, second, k.AccessKey))
	id := w.Running("mylab", "a1", func(r *request.Session) { r.OwnerAccessKey = k.AccessKey })
	require.NoError(t, w.Tenancy.DeleteKeypair(ctx, ada, k.AccessKey))
	refusedSoon(t, w, k.AccessKey)
	require.Equal(t, ada.AccessKey, w.Session(id).AccessKey, "its session goes on under the main keypair")
	for _, gone := range []cluster.AccessKey{k.AccessKey, "AKIANONE", ""} {
		kindIs(t, fault.NotFound, w.Tenancy.DeleteKeypair(ctx, w.Admin, gone))
		kindIs(t, fault.NotFound, w.Tenancy.ModifyKeypair(ctx, w.Admin, gone, tenancy.KeypairProps{}))
	}
	_, err = w.Tenancy.GetKeypair(ctx, ada, k.AccessKey)
	kindIs(t, fault.NotFound, err)
	_, err = tenancy.Reseal(ctx, w.Store, managertest.Key(t))
	require.NoError(t, err)

	for _, p := range []tenancy.KeypairProps{{RateLimit: new(-1)}, {ConcurrencyLimit: new(-1)}, {RateLimit: new(1 << 40)}} {
		kindIs(t, fault.Invalid, w.Tenancy.ModifyKeypair(ctx, w.Admin, ada.AccessKey, p))
	}
	kindIs(t, fault.NotFound, w.Tenancy.ModifyKeypair(ctx, w.Admin, ada.AccessKey, tenancy.KeypairProps{ResourcePolicy: new("none")}))
	for _, overlap := range []time.Duration{-1, 31 * 24 * time.Hour} {
		_, err = w.Tenancy.RotateKeypair(ctx, ada, "", overlap)
		kindIs(t, fault.Invalid, err)
	}
}

// However many at once: a keypair is replaced once, and of the last two of superadmins one stays.
func TestKeypairRaces(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	_, ada := made(t, w, "ada@x")
	var running sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		running.Go(func() { _, errs[i] = w.Tenancy.RotateKeypair(ctx, ada, ada.AccessKey, time.Hour) })
	}
	running.Wait()
	done := 0
	for _, err := range errs {
		if err == nil {
			done++
		}
	}
	require.Equal(t, 1, done, "%v", errs)

	_, root := made(t, w, "root2@x", as(authz.RoleSuperadmin))
	both := []authz.Actor{w.Admin, root}
	for i := range both {
		running.Go(func() {
			errs[i] = w.Tenancy.ModifyKeypair(ctx, both[i], both[1-i].AccessKey, tenancy.KeypairProps{IsActive: new(false)})
		})
	}
	running.Wait()
	require.True(t, (errs[0] == nil) != (errs[1] == nil), "%v, %v", errs[0], errs[1])
}

// A user cannot have any number of keypairs.
func TestKeypairsAreBounded(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	made(t, w, "ada@x")
	var err error
	for i := 0; err == nil; i++ {
		require.Less(t, i, 51)
		_, err = w.Tenancy.CreateKeypair(t.Context(), w.Admin, "ada@x", tenancy.KeypairProps{})
	}
	kindIs(t, fault.Exhausted, err)
	require.Contains(t, err.Error(), fmt.Sprint(50))
}
