package folder_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/storage"
)

// epochs are what the last token that the proxy made was asked for with.
func (r *rig) epochs(a authz.Actor, ref string) storage.TokenRights {
	r.t.Helper()
	_, err := r.RequestDownload(r.t.Context(), a, ref, "f", false)
	r.must(err)
	r.proxy.mu.Lock()
	defer r.proxy.mu.Unlock()
	return *r.proxy.last[storage.PathDownload].(storage.DownloadRequest).Rights
}

// known reads the epochs of the database, as managers tell them.
func (r *rig) known() map[string]int64 {
	r.t.Helper()
	rows, err := r.store.RecentRights(r.t.Context(), time.Unix(0, 0))
	r.must(err)
	out := map[string]int64{}
	for _, row := range rows {
		out[row.Subject] = row.Epoch
	}
	return out
}

// good reports whether a storage proxy that knows everything takes a token.
func (r *rig) good(t storage.TokenRights, id cluster.FolderID) bool {
	k := r.known()
	return t.UserEpoch >= k[storage.UserSubject(t.User)] && t.FolderEpoch >= k[storage.FolderSubject(string(id))] &&
		t.ShareEpoch >= k[storage.ShareSubject(t.User, string(id))]
}

// TestEveryWayToLoseRightsEndsTokens takes a token away in every way in which its user can lose the right to it, through the use case
// where this package has one and through the row where another noun has it.
func TestEveryWayToLoseRightsEndsTokens(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// who has the token, who is not concerned.
		who, other func(*rig) authz.Actor
		folder     func(*rig) folder.Folder
		lose       func(*rig, folder.Folder) error
	}{
		"unshared": {bob, alice, shared, func(r *rig, f folder.Folder) error {
			_, err := r.Unshare(r.t.Context(), r.alice, string(f.ID), []string{"bob@x"})
			return err
		}},
		"left": {bob, alice, shared, func(r *rig, f folder.Folder) error { return r.Leave(r.t.Context(), r.bob, string(f.ID), nil) }},
		"a share of a project's folder that is less": {bob, alice, ofProject, func(r *rig, f folder.Folder) error {
			_, err := r.Share(r.t.Context(), r.admin, string(f.ID), cluster.ReadOnly, []string{"bob@x"})
			return err
		}},
		"a share that was changed": {bob, alice, shared, func(r *rig, f folder.Folder) error {
			return r.UpdateSharing(r.t.Context(), r.alice, string(f.ID), []folder.SharingChange{{User: r.bob.UserID,
				Permission: new(cluster.ReadOnly)}})
		}},
		"trash": {alice, nil, own, func(r *rig, f folder.Folder) error {
			_, err := r.Trash(r.t.Context(), r.alice, string(f.ID))
			return err
		}},
		"deleted": {alice, nil, own, func(r *rig, f folder.Folder) error {
			r.sql("DELETE FROM folders WHERE id = $1", f.ID)
			return nil
		}},
		"read-only from now on": {alice, nil, own, func(r *rig, f folder.Folder) error {
			ro := cluster.ReadOnly
			_, err := r.UpdateOptions(r.t.Context(), r.alice, string(f.ID), folder.Options{Permission: &ro})
			return err
		}},
		"another owner": {alice, nil, own, func(r *rig, f folder.Folder) error {
			return r.ChangeOwnership(r.t.Context(), r.super, string(f.ID), "bob@x")
		}},
		"inactive user": {alice, bob, ofProject, row(`UPDATE users SET status = 'inactive' WHERE username = 'alice'`)},
		"deleted user":  {carol, bob, sharedWithCarol, row(`DELETE FROM keypairs WHERE access_key = 'Kcarol'`)},
		"another role":  {admin, bob, ofProject, row(`UPDATE users SET role = 'user' WHERE username = 'admin'`)},
		"inactive key":  {alice, bob, ofProject, row(`UPDATE keypairs SET is_active = false WHERE access_key = 'Kalice'`)},
		"no member any more": {alice, bob, ofProject, row(`DELETE FROM project_members
			WHERE user_id = (SELECT id FROM users WHERE username = 'alice')`)},
		"inactive project": {alice, nil, ofProject, row(`UPDATE projects SET is_active = false WHERE name = 'proj'`)},
		"inactive domain":  {alice, nil, ofProject, row(`UPDATE domains SET is_active = false WHERE name = 'd'`)},
		"a domain that loses the host": {alice, nil, own,
			row(`UPDATE domains SET allowed_vfolder_hosts = '{}' WHERE name = 'd'`)},
		"a policy that loses the host": {alice, nil, own,
			row(`UPDATE keypair_resource_policies SET allowed_vfolder_hosts = '{"x":[]}' WHERE name = 'default'`)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			f := c.folder(r)
			token := r.epochs(c.who(r), string(f.ID))
			require.True(t, r.good(token, f.ID))
			var others storage.TokenRights
			if c.other != nil {
				others = r.epochs(c.other(r), string(f.ID))
			}
			r.must(c.lose(r, f))
			require.False(t, r.good(token, f.ID), "the token is refused from now on")
			if c.other != nil {
				require.True(t, r.good(others, f.ID), "nobody else's")
			}
		})
	}
}

func alice(r *rig) authz.Actor { return r.alice }
func bob(r *rig) authz.Actor   { return r.bob }
func carol(r *rig) authz.Actor { return r.carol }
func admin(r *rig) authz.Actor { return r.admin }

func own(r *rig) folder.Folder       { return r.create(r.alice, "own") }
func ofProject(r *rig) folder.Folder { return r.create(r.admin, "proj-rw", of(r.project)) }

func shared(r *rig) folder.Folder {
	f := r.create(r.alice, "own")
	r.share(f, r.alice, r.bob, cluster.ReadWrite)
	return f
}

func sharedWithCarol(r *rig) folder.Folder {
	f := shared(r)
	r.share(f, r.alice, r.carol, cluster.ReadWrite)
	return f
}

func row(sql string) func(*rig, folder.Folder) error {
	return func(r *rig, _ folder.Folder) error {
		r.sql(sql)
		return nil
	}
}

// TestWhatTakesNothingAwayEndsNoToken makes the changes of a busy folder.
func TestWhatTakesNothingAwayEndsNoToken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := own(r)
	token := r.epochs(r.alice, string(f.ID))
	r.share(f, r.alice, r.bob, cluster.ReadWrite)
	_, err := r.Rename(t.Context(), r.alice, string(f.ID), "other")
	r.must(err)
	for _, status := range []string{"mounted", "performing", "ready"} {
		r.sql("UPDATE folders SET status = $1, last_used = now() WHERE id = $2", status, f.ID)
	}
	r.sql("UPDATE keypairs SET last_used = now(), num_queries = num_queries + 1")
	r.sql("UPDATE users SET full_name = 'Ada', modified_at = now()")
	require.True(t, r.good(token, f.ID))
}

// TestADecisionThatWasOvertakenMakesNoToken changes who the user is between the decision about the request and its token.
func TestADecisionThatWasOvertakenMakesNoToken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := ofProject(r)
	stale := r.alice // as it was read before
	r.sql(`DELETE FROM project_members WHERE user_id = $1 AND project_id = $2`, r.alice.UserID, r.project)
	_, err := r.RequestDownload(t.Context(), stale, string(f.ID), "f", false)
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	r.sql(`UPDATE users SET status = 'inactive' WHERE id = $1`, r.bob.UserID)
	_, err = r.RequestUpload(t.Context(), r.bob, string(f.ID), "f", 1, "")
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
}

// TestAWatchHearsOfEpochs follows the database as a manager does.
func TestAWatchHearsOfEpochs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := shared(r)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	rights := folder.NewRights(r.store, r.clock, slog.New(slog.DiscardHandler))
	go func() { ran <- rights.Follow(ctx) }()
	go func() { _ = r.store.Run(ctx) }()
	w := rights.Watch()
	defer w.Close()
	heard := func(subject string, after int64) int64 {
		t.Helper()
		for {
			await.Value(t, w.Changed())
			epochs, _ := w.Take(storage.MaxEpochs)
			if n := epochs[subject]; n > after {
				return n
			}
		}
	}
	subject := storage.ShareSubject(string(r.bob.UserID), string(f.ID))
	first := heard(subject, 0)
	_, err := r.Unshare(t.Context(), r.alice, string(f.ID), []string{"bob@x"})
	r.must(err)
	heard(subject, first)
	r.sql("UPDATE users SET status = 'inactive' WHERE id = $1", r.carol.UserID)
	heard(storage.UserSubject(string(r.carol.UserID)), 0)
	// From the beginning, in pieces: only the last one is complete.
	w.Restart()
	epochs, asOf := w.Take(1)
	require.Len(t, epochs, 1)
	require.Zero(t, asOf)
	_, asOf = w.Take(storage.MaxEpochs)
	require.NotZero(t, asOf)
	cancel()
	r.must(await.Value(t, ran))
}
