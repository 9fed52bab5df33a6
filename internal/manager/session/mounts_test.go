package session_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// folders plans mounts of made-up folders and holds them as package folder does.
type folders struct {
	*folder.Service
	plan  []cluster.FolderMount
	asked []folder.MountRequest
	after func() // a plan was made
	mu    sync.Mutex
}

func (f *folders) ResolveMounts(_ context.Context, _ *dbgen.Queries, owner authz.Actor,
	r folder.MountRequest) ([]cluster.FolderMount, error) {
	f.mu.Lock()
	f.asked = append(f.asked, r)
	f.mu.Unlock()
	if !owner.Known() {
		return nil, fault.Deniedf("nobody")
	}
	if len(r.Mounts) == 0 {
		return nil, nil
	}
	if f.after != nil {
		f.after()
	}
	return f.plan, nil
}

// withFolders is a world with folders local:volume1 data and other of the administrator.
func withFolders(t *testing.T) (*managertest.World, *folders) {
	t.Helper()
	f := &folders{}
	w := managertest.New(t, func(d *nouns.Deps) {
		d.WrapFolders = func(real session.Folders) session.Folders { f.Service = real.(*folder.Service); return f }
	})
	w.Exec(`UPDATE domains SET allowed_vfolder_hosts = '{"local:volume1": ["create-vfolder","modify-vfolder","delete-vfolder",` +
		`"mount-in-session"]}'`)
	for i, name := range []string{"data", "other"} {
		user := string(w.Admin.UserID)
		m := cluster.FolderMount{
			Folder: cluster.FolderID(fmt.Sprintf("0b5e4a3c-0000-4000-8000-00000000000%d", i+1)), Name: name, Host: "local:volume1",
			Scope: "user:" + user, Usage: "general",
			Perm: cluster.ReadWrite, Subpath: ".", Target: "/home/work/" + name, VolumePath: "/srv/volume1", OwnerUID: 9001, OwnerGID: 9002,
		}
		require.NoError(t, w.Store.AddFolder(t.Context(),
			dbgen.AddFolderParams{ID: string(m.Folder), Name: name, Host: m.Host, DomainName: w.Admin.Domain, QuotaScope: m.Scope,
				UsageMode: "general", Permission: "rw", UserID: &user, CreatorID: &user, Status: "ready"}))
		f.plan = append(f.plan, m)
	}
	f.plan[1].Perm, f.plan[1].Subpath, f.plan[1].Target = cluster.ReadOnly, "a/b", "/other"
	return w, f
}

func mounting(r *request.Session) { r.Mounts = []string{"data", "other/a/b"} }

func TestSessionsMountFolders(t *testing.T) {
	t.Parallel()
	w, f := withFolders(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	id := w.Create("with-folders", mounting, func(r *request.Session) { r.ClusterMode = "single-node" }).ID
	s := w.Session(id)
	require.Equal(t, f.plan, s.Mounts)
	require.Equal(t, cluster.Interactive, f.asked[0].SessionType)
	require.Equal(t, s.ProjectID, f.asked[0].Project)
	desired := func() *cluster.KernelSpec {
		list, err := w.Reports.Desired(t.Context(), "a1", nil)
		require.NoError(t, err)
		require.Len(t, list, 1)
		return list[0].Spec
	}
	w.Place(id, "a1")
	require.Equal(t, f.plan, desired().Mounts)
	w.Report(id, "a1", cluster.PhaseRunning)
	_, err := w.Sessions.Restart(t.Context(), w.Admin, "with-folders", "")
	require.NoError(t, err)
	require.Equal(t, f.plan, desired().Mounts, "a restart keeps them")

	plain := w.Session(w.Create("without").ID)
	require.NotNil(t, plain.Mounts)
	require.Empty(t, plain.Mounts)

	// In use while the session lives, and not any more after it.
	_, err = f.Trash(t.Context(), w.Admin, "data")
	require.Equal(t, fault.Conflict, fault.KindOf(err), "%v", err)
	require.Contains(t, err.Error(), "with-folders")
}

// TestFolderDeletedMeanwhile: a folder that goes between the plan and the commit is not mounted.
func TestFolderDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	w, f := withFolders(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	f.after = func() {
		_, err := f.Trash(t.Context(), w.Admin, "other")
		require.NoError(t, err)
	}
	_, err := w.Sessions.Create(t.Context(), w.Admin, request.Session{Name: "too-late", Image: "python", Mounts: []string{"data"}})
	require.Equal(t, fault.Conflict, fault.KindOf(err), "%v", err)
	require.Equal(t, "vfolder-filter-status-failed", fault.ReasonOf(err))
	require.Contains(t, err.Error(), "folder other (local:volume1) was deleted at this moment")
	require.NotEmpty(t, fault.NextOf(err))
	_, err = w.Sessions.Find(t.Context(), w.Admin, "too-late", "")
	require.Equal(t, fault.NotFound, fault.KindOf(err), "nothing is left of it")
}

// TestCreateRacesDelete: of a session that mounts a folder and a deletion of the folder, exactly one wins.
func TestCreateRacesDelete(t *testing.T) {
	t.Parallel()
	w, f := withFolders(t)
	w.Agent("a1", 64, 64*managertest.GiB)
	wins := map[bool]int{}
	for round := range 12 {
		var created, trashed error
		var both sync.WaitGroup
		name := fmt.Sprintf("race-%d", round)
		both.Go(func() {
			for range round / 2 { // a little later each time
				_, _ = w.Sessions.Find(t.Context(), w.Admin, "nobody", "")
			}
			_, created = w.Sessions.Create(t.Context(), w.Admin,
				request.Session{Name: name, Image: "python", Mounts: []string{"data"}, NoReuse: true})
		})
		both.Go(func() { _, trashed = f.Trash(t.Context(), w.Admin, "other") })
		both.Wait()
		require.NotEqual(t, created == nil, trashed == nil, "create: %v, delete: %v", created, trashed)
		wins[created == nil]++
		if created == nil {
			require.Equal(t, fault.Conflict, fault.KindOf(trashed), "%v", trashed)
			_, err := w.Sessions.Destroy(t.Context(), w.Admin, name, session.DestroyOptions{})
			require.NoError(t, err)
			continue
		}
		require.Equal(t, fault.Conflict, fault.KindOf(created), "%v", created)
		_, err := f.Restore(t.Context(), w.Admin, string(f.plan[1].Folder))
		require.NoError(t, err)
	}
	t.Logf("the session won %d times, the deletion %d times", wins[true], wins[false])
}

// TestWaitOnTheWayIsTold: what an agent says that a kernel waits for is seen while it waits.
func TestWaitOnTheWayIsTold(t *testing.T) {
	t.Parallel()
	w, _ := withFolders(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	id := w.Create("waits").ID
	w.Place(id, "a1")
	const why = "the file system of volume local:volume1 does not answer on this node"
	waits := func(detail string) func(*cluster.KernelObservation) {
		return func(o *cluster.KernelObservation) { o.Detail = detail }
	}
	w.Report(id, "a1", cluster.PhasePreparing)
	require.Empty(t, w.Session(id).StatusInfo)
	w.Report(id, "a1", cluster.PhasePreparing, waits(why))
	s := w.Session(id)
	require.Equal(t, cluster.Preparing, s.Status)
	require.Equal(t, why, s.StatusInfo)
	require.Equal(t, why, s.MainKernel().StatusInfo)
	w.Report(id, "a1", cluster.PhasePreparing, waits(why+"\x00"), func(o *cluster.KernelObservation) { o.ContainerID = "" })
	w.Report(id, "a1", cluster.PhaseRunning)
	s = w.Session(id)
	require.Equal(t, cluster.Running, s.Status)
	require.Empty(t, s.StatusInfo)
	require.Empty(t, s.MainKernel().StatusInfo)
	// What the owner should know of a session that runs.
	const full = "the session's own disk is full"
	w.Report(id, "a1", cluster.PhaseRunning, waits(full))
	s = w.Session(id)
	require.Equal(t, cluster.Running, s.Status)
	require.Equal(t, full, s.StatusInfo)
}

func TestHungVolumesAreStored(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	require.NoError(t, w.Reports.UpdateFacts(t.Context(), "a1", w.Epoch("a1"),
		cluster.NodeFacts{Revision: 2, HungVolumes: []string{"local:volume1"}}))
	var hung []string
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT hung_volumes FROM agents WHERE id = 'a1'`).Scan(&hung))
	require.Equal(t, []string{"local:volume1"}, hung)
}

func TestDataPortsAreStored(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	for i, want := range [][2]string{{"10.0.0.1:6010", "/var/lib/berth/agent/data.sock"}, {"", ""}} {
		require.NoError(t, w.Reports.UpdateFacts(t.Context(), "a1", w.Epoch("a1"),
			cluster.NodeFacts{Revision: int64(2 + i), DataAddress: want[0], DataSocket: want[1]}))
		var got [2]string
		require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT data_address, data_socket FROM agents WHERE id = 'a1'`).
			Scan(&got[0], &got[1]))
		require.Equal(t, want, got)
	}
}
