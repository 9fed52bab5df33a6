package manager_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/storage"
	"berth.dev/berth/internal/testkit"
)

// TestFoldersWithAProxy: two managers and a real storage proxy, which find each other in etcd, from a folder's creation to
// its removal, through a proxy that goes away in between.
func TestFoldersWithAProxy(t *testing.T) {
	t.Parallel()
	secret := chassis.NewSecret("a secret that nobody knows")
	c := testkit.New(t, testkit.Options{Managers: 2, NoAgents: true, Manager: func(m *manager.Config) { m.Storage.Secret = secret }})
	ctx, disk := t.Context(), t.TempDir()
	cfg := storage.DefaultConfig()
	cfg.ClientListen, cfg.ManagerListen, cfg.StateDir, cfg.Secret = "127.0.0.1:0", "127.0.0.1:0", t.TempDir(), secret
	cfg.UID, cfg.GID = max(os.Geteuid(), 1), max(os.Getegid(), 1)
	cfg.Volumes = map[string]storage.VolumeConfig{"volume1": {Backend: "posix", Path: disk}}
	start := func() (stop func()) {
		p, err := storage.New(ctx, cfg, storage.Deps{Etcd: c.EtcdClient(), Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		g, err := chassis.NewGroup(slog.New(slog.DiscardHandler), p.Services()...)
		require.NoError(t, err)
		require.NoError(t, g.Start(ctx))
		stop = sync.OnceFunc(func() { _ = g.Stop(context.Background()) })
		t.Cleanup(stop)
		return stop
	}
	stop := start()
	creds, _ := c.Managers[0].Admin()
	admin, _, err := c.Managers[0].Nouns().Tenancy.Authenticate(ctx, creds.AccessKey)
	require.NoError(t, err)
	one, two := c.Managers[0].Nouns().Folders, c.Managers[1].Nouns().Folders
	c.Until("both managers see the volume", func() bool {
		a, err := one.Hosts(ctx, admin, "")
		b, err2 := two.Hosts(ctx, admin, "")
		return err == nil && err2 == nil && a.Default == folder.FirstHost && len(b.Allowed) == 1 && b.Info[folder.FirstHost].Problem == ""
	})

	f, err := one.Create(ctx, admin, folder.CreateInput{Name: "data"})
	require.NoError(t, err)
	require.DirExists(t, filepath.Join(disk, cluster.FolderRef{Scope: f.Scope, Folder: f.ID}.Dir()))
	_, err = two.Mkdir(ctx, admin, "data", folder.MkdirInput{Paths: []string{"a/b"}, Parents: true})
	require.NoError(t, err)
	send := func(ticket folder.Ticket, offset, text string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPatch, ticket.URL+"?token="+ticket.Token, strings.NewReader(text))
		require.NoError(t, err)
		req.Header.Set("Tus-Resumable", "1.0.0")
		req.Header.Set("Upload-Offset", offset)
		req.Header.Set("Content-Type", "application/offset+octet-stream")
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusNoContent, resp.StatusCode)
	}
	ticket, err := one.RequestUpload(ctx, admin, "data", "a/b/c.txt", 5, "")
	require.NoError(t, err)
	send(ticket, "0", "hel")
	again, err := two.RequestUpload(ctx, admin, "data", "a/b/c.txt", 5, ticket.Upload)
	require.NoError(t, err, "whoever lost the ticket goes on by the upload's name")
	require.Equal(t, ticket.Upload, again.Upload)
	send(again, "3", "lo")
	_, err = two.RequestUpload(ctx, admin, "data", "a/b/c.txt", 5, "00112233445566778899aabbccddeeff")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	list, err := two.ListFiles(ctx, admin, "data", "./a/b", "", 0)
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	require.Equal(t, "c.txt", list.Items[0].Name)
	_, err = two.ListFiles(ctx, admin, "data", "missing", "", 0)
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)

	copied, task, err := two.Clone(ctx, admin, "data", folder.CloneInput{Name: "copy"})
	require.NoError(t, err)
	c.Until("the copy is complete", func() bool {
		got, err := one.Find(ctx, admin, string(copied.ID))
		require.NoError(t, err)
		require.NotEqual(t, cluster.FolderError, got.Status, got.StatusInfo)
		return got.Status == cluster.FolderReady
	})
	ended, err := c.Managers[0].Nouns().Operations.Task(ctx, admin, task)
	require.NoError(t, err)
	require.Equal(t, "done", ended.Status)
	ticket, err = one.RequestDownload(ctx, admin, "copy", "a/b/c.txt", false)
	require.NoError(t, err)
	resp, err := http.Get(ticket.URL + "?token=" + ticket.Token) //nolint:noctx // of the test's own server
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "hello", string(body))

	_, err = one.SetQuota(ctx, admin, "", "data", 1<<20)
	require.NoError(t, err)
	quota, err := two.GetQuota(ctx, admin, "", "data")
	require.NoError(t, err)
	require.True(t, quota.Own)
	require.EqualValues(t, 1<<20, *quota.LimitBytes)
	_, err = one.UnsetQuota(ctx, admin, "", "data")
	require.NoError(t, err)

	deleting, err := two.DeleteFilesAsync(ctx, admin, "copy", []string{"a"}, true)
	require.NoError(t, err)
	c.Until("the files are deleted", func() bool {
		ended, err := c.Managers[0].Nouns().Operations.Task(ctx, admin, deleting)
		require.NoError(t, err)
		require.NotEqual(t, "failed", ended.Status, ended.Message)
		return ended.Status == "done"
	})

	// Deleting for good is remembered while the proxy is away, and done when it is back.
	_, err = one.Trash(ctx, admin, "data")
	require.NoError(t, err)
	stop()
	c.Until("its announcement is gone", func() bool {
		h, err := one.Hosts(ctx, admin, "")
		return err == nil && h.Info[folder.FirstHost].Problem != ""
	})
	_, err = one.Create(ctx, admin, folder.CreateInput{Name: "more"})
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	gone, err := one.DeleteForever(ctx, admin, "data")
	require.NoError(t, err)
	require.Equal(t, cluster.FolderDeleteOngoing, gone.Status)
	start()
	c.Until("it is removed", func() bool {
		got, err := two.Find(ctx, admin, string(gone.ID))
		require.NoError(t, err)
		require.NotEqual(t, cluster.FolderDeleteError, got.Status, got.StatusInfo)
		return got.Status == cluster.FolderDeleteComplete
	})
	var kept []string
	require.NoError(t, filepath.WalkDir(disk, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == "c.txt" && !strings.Contains(path, ".berth") {
			kept = append(kept, path)
		}
		return nil
	}))
	require.Empty(t, kept)
}
