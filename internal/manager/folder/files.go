package folder

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/wire/storage"
)

const (
	maxMkdirs   = 50
	maxFiles    = 1000 // paths of one request
	listingPage = 1000
)

// MaxListing is how many entries of a directory a list may have.
const MaxListing = 10_000

// place is a folder with its address on a storage proxy.
type place struct {
	Folder
	host cluster.VolumeHost
	vfid string
}

func placeOf(f Folder) (place, error) {
	host, err := cluster.ParseVolumeHost(f.Host)
	if err != nil {
		return place{}, err
	}
	if f.UnmanagedPath != "" {
		return place{}, fault.Invalidf("folder %s is an unmanaged path, whose files no storage proxy serves", f.Name)
	}
	return place{Folder: f, host: host, vfid: f.ref().String()}, nil
}

func (p place) path(rel string) storage.PathRequest {
	return storage.PathRequest{Volume: p.host.Volume, VFID: p.vfid, RelPath: rel}
}

// ask sends a request about a folder to its proxy.
func (s *Service) ask(ctx context.Context, p place, what, method, path string, request, reply any) error {
	if err := s.d.Proxies.Do(ctx, p.host.Proxy, method, path, request, reply); err != nil {
		return fmt.Errorf("%s in folder %s (%s): %w", what, p.Name, p.Folder.Host, err)
	}
	return nil
}

// toRead finds a folder whose files the actor may read. permit is the permission that the actor needs on its host; "" is none.
func (s *Service) toRead(ctx context.Context, a authz.Actor, ref string, permit HostPermission, what string) (place, error) {
	return s.toWork(ctx, a, ref, cluster.ReadOnly, cluster.FolderStatus.Readable, permit, what)
}

// toWrite finds a folder for whose files the actor has at least the permission least.
func (s *Service) toWrite(ctx context.Context, a authz.Actor, ref string, least cluster.MountPermission, permit HostPermission,
	what string) (place, error) {
	return s.toWork(ctx, a, ref, least, cluster.FolderStatus.Updatable, permit, what)
}

func (s *Service) toWork(ctx context.Context, a authz.Actor, ref string, least cluster.MountPermission,
	status func(cluster.FolderStatus) bool, permit HostPermission, what string) (place, error) {
	f, err := s.find(ctx, a, ref, living)
	if err != nil {
		return place{}, err
	}
	if err := f.needFiles(a, least, what); err != nil {
		return place{}, err
	}
	if err := f.needStatus(status(f.Status), "used"); err != nil {
		return place{}, err
	}
	if permit != "" {
		if err := s.needHost(ctx, a, f, permit); err != nil {
			return place{}, err
		}
	}
	return placeOf(f)
}

// allFailed returns an error when no path of a request succeeded.
func allFailed(r Results, p place, what string) error {
	if len(r.Success) > 0 || len(r.Failed) == 0 {
		return nil
	}
	words := make([]string, 0, 3)
	for _, one := range r.Failed[:min(3, len(r.Failed))] {
		words = append(words, one.Item+": "+one.Msg)
	}
	return fault.Invalidf("%s in folder %s (%s): %s", what, p.Name, p.Folder.Host, strings.Join(words, "; ")).
		WithReason("vfolder-operation-failed").
		WithData(map[string]any{"results": r})
}

// results are those of a reply; nil lists become empty ones.
func results(r Results) Results {
	if r.Success == nil {
		r.Success = []storage.PathResult{}
	}
	if r.Failed == nil {
		r.Failed = []storage.PathResult{}
	}
	return r
}

// Mkdir makes directories; of several some may fail, which Results tell. The error is set when all failed.
func (s *Service) Mkdir(ctx context.Context, a authz.Actor, ref string, in MkdirInput) (_ Results, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.make-directory", ref)
	defer end(&err)
	p, err := s.toWrite(ctx, a, ref, cluster.ReadWrite, PermitUpload, "make directories")
	if err != nil {
		return Results{}, err
	}
	paths, err := somePaths(in.Paths, maxMkdirs)
	if err != nil {
		return Results{}, err
	}
	var r Results
	req := storage.MkdirRequest{Volume: p.host.Volume, VFID: p.vfid, RelPaths: paths, Parents: in.Parents, ExistOK: in.ExistOK}
	if err := s.ask(ctx, p, "make directories", "POST", storage.PathMkdir, req, &r); err != nil {
		return Results{}, err
	}
	r = results(r)
	return r, allFailed(r, p, "make directories")
}

// RenameFile gives an entry another name in its directory.
func (s *Service) RenameFile(ctx context.Context, a authz.Actor, ref, path, name string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.rename-file", ref)
	defer end(&err)
	p, err := s.toWrite(ctx, a, ref, cluster.ReadWrite, PermitModify, "rename files")
	if err != nil {
		return err
	}
	rel, err := somePath(path)
	if err != nil {
		return err
	}
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > 255 {
		return fault.Invalidf("%.80q is no name for a file", name).
			WithNext("use 1 to 255 bytes without /; to move a file into another directory use move")
	}
	return s.ask(ctx, p, "rename "+rel, "POST", storage.PathRename, storage.RenameRequest{PathRequest: p.path(rel), NewName: name}, nil)
}

// MoveFile moves an entry inside its folder.
func (s *Service) MoveFile(ctx context.Context, a authz.Actor, ref, src, dst string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.move-file", ref)
	defer end(&err)
	p, err := s.toWrite(ctx, a, ref, cluster.ReadWrite, PermitModify, "move files")
	if err != nil {
		return err
	}
	paths, err := somePaths([]string{src, dst}, 2)
	if err != nil {
		return err
	}
	return s.ask(ctx, p, "move "+paths[0], "POST", storage.PathMove,
		storage.MoveRequest{Volume: p.host.Volume, VFID: p.vfid, Src: paths[0], Dst: paths[1]}, nil)
}

// ListFiles lists up to limit entries of a directory, 0 being MaxListing, after the entry of that name
// ("" from the start).
func (s *Service) ListFiles(ctx context.Context, a authz.Actor, ref, path, after string, limit int) (Listing, error) {
	out := Listing{Items: []Entry{}}
	p, err := s.toRead(ctx, a, ref, "", "list files")
	if err != nil {
		return out, err
	}
	rel, err := filePath(path)
	if err != nil {
		return out, err
	}
	if limit == 0 {
		limit = MaxListing
	}
	if limit < 1 || limit > MaxListing {
		return out, fault.Invalidf("a list has 1 to %d entries, not %d", MaxListing, limit)
	}
	if len(after) > 255 || strings.ContainsRune(after, 0) {
		return out, fault.Invalidf("%.80q is no name of a file", after)
	}
	for {
		var page storage.ListReply
		if err := s.ask(ctx, p, "list "+rel, "POST", storage.PathList,
			storage.ListRequest{PathRequest: p.path(rel), After: after, Limit: min(listingPage, limit-len(out.Items))}, &page); err != nil {
			return out, err
		}
		out.Items = append(out.Items, page.Items...)
		if page.Next == "" || page.Next == after {
			return out, nil
		}
		if len(out.Items) >= limit {
			out.Cut, out.Next = true, page.Next
			return out, nil
		}
		after = page.Next
	}
}

// DeleteFiles deletes files now. The error is set when all failed.
func (s *Service) DeleteFiles(ctx context.Context, a authz.Actor, ref string, files []string, recursive bool) (_ Results, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.delete-files", ref)
	defer end(&err)
	p, paths, err := s.toDelete(ctx, a, ref, files)
	if err != nil {
		return Results{}, err
	}
	var r Results
	req := storage.DeleteRequest{Volume: p.host.Volume, VFID: p.vfid, RelPaths: paths, Recursive: recursive}
	if err := s.ask(ctx, p, "delete files", "POST", storage.PathDelete, req, &r); err != nil {
		return Results{}, err
	}
	r = results(r)
	return r, allFailed(r, p, "delete files")
}

func (s *Service) toDelete(ctx context.Context, a authz.Actor, ref string, files []string) (place, []string, error) {
	p, err := s.toWrite(ctx, a, ref, cluster.ReadWriteDelete, PermitModify, "delete files")
	if err != nil {
		return p, nil, err
	}
	paths, err := somePaths(files, maxFiles)
	return p, paths, err
}

// DeleteFilesAsync deletes files in the background and returns the id of the background task.
func (s *Service) DeleteFilesAsync(ctx context.Context, a authz.Actor, ref string, files []string,
	recursive bool) (task string, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.delete-files", ref)
	defer end(&err)
	p, paths, err := s.toDelete(ctx, a, ref, files)
	if err != nil {
		return "", err
	}
	return s.begin(ctx, a, p, taskDeleteFiles, storage.PathDeleteAsync, func(id string) any {
		return storage.DeleteRequest{Volume: p.host.Volume, VFID: p.vfid, RelPaths: paths, Recursive: recursive, TaskID: id}
	})
}

// The kinds of background tasks.
const (
	taskClone       = "clone_folder"
	taskDeleteFiles = "delete_folder_files"
	taskImport      = "import_to_folder"
	taskExport      = "export_from_folder"
)

// begin asks a proxy to start a background task. The task's id is chosen and its row written first. If the manager dies before the
// proxy has answered, Loop finds the row and follows the task.
func (s *Service) begin(ctx context.Context, a authz.Actor, p place, kind, path string, request func(id string) any) (string, error) {
	id := s.d.IDs()
	err := s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		return noteTask(ctx, tx, a, id, kind, string(p.ID), p.host.Proxy)
	})
	if err != nil {
		return "", err
	}
	settle, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	err = s.ask(settle, p, "begin a task", "POST", path, request(id), nil)
	switch {
	case err != nil && definite(err):
		s.endTask(settle, id, "failed", err.Error(), 0, 0)
		return "", err
	case err != nil: // the proxy may have begun it; Loop finds out
		id = ""
	}
	s.d.Store.Wake(store.TopicFolders)
	return id, err
}

func noteTask(ctx context.Context, tx *store.Tx, a authz.Actor, id, kind, folder, proxy string) error {
	if err := tx.AddTask(ctx, dbgen.AddTaskParams{ID: id, Kind: kind, Owner: new(string(a.UserID)), Subject: folder}); err != nil {
		return fmt.Errorf("note task: %w", err)
	}
	if err := tx.AddFolderTask(ctx, id, folder, proxy, kind); err != nil {
		return fmt.Errorf("note task: %w", err)
	}
	return nil
}

// endTask writes the end of a task, even when its request is over.
func (s *Service) endTask(ctx context.Context, id, status, message string, current, total int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		return closeTask(ctx, tx, id, status, message, current, total)
	})
	if err != nil {
		s.d.Log.Warn("could not note the end of a task; it will be looked at again", "task", id, "error", err)
	}
}

func closeTask(ctx context.Context, tx *store.Tx, id, status, message string, current, total int64) error {
	if err := tx.SetTask(ctx, dbgen.SetTaskParams{ID: id, Status: status, Message: store.Text(message), Current: current,
		Total: total}); err != nil {
		return err
	}
	tx.Wake(taskTopic(id))
	return tx.DropFolderTask(ctx, id)
}

// taskTopic is the topic on which whoever watches a task is woken.
func taskTopic(id string) string { return "task:" + id }

// comingFrom binds a token to the networks that its user may come from.
func comingFrom(a authz.Actor) storage.Allowed {
	return storage.Allowed{Clients: a.AllowedClientIP.Texts()}
}

// ticket asks for a token and says where clients bring it.
func (s *Service) ticket(ctx context.Context, p place, what, path, door string, request any) (Ticket, error) {
	base, err := s.d.Proxies.ClientURL(p.host.Proxy)
	if err != nil {
		return Ticket{}, err
	}
	var t storage.TokenReply
	if err := s.ask(ctx, p, what, "POST", path, request, &t); err != nil {
		return Ticket{}, err
	}
	return Ticket{Token: t.Token, URL: strings.TrimRight(base, "/") + door, Upload: t.Upload}, nil
}

// RequestUpload lets a client write one file of that size in bytes; resume goes on with an upload of that folder that was begun before.
func (s *Service) RequestUpload(ctx context.Context, a authz.Actor, ref, path string, size int64, resume string) (_ Ticket, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.upload", ref)
	defer end(&err)
	decide := func(ref string) (place, error) {
		return s.toWrite(ctx, a, ref, cluster.ReadWrite, PermitUpload, "upload files")
	}
	p, rights, err := s.entitled(ctx, a, ref, decide)
	if err != nil {
		return Ticket{}, err
	}
	rel, err := somePath(path)
	if err != nil {
		return Ticket{}, err
	}
	if size < 0 {
		return Ticket{}, fault.Invalidf("a file of %d bytes cannot be uploaded", size).WithNext("give the size of the file in bytes")
	}
	return s.ticket(ctx, p, "begin the upload of "+rel, storage.PathUpload, "/upload",
		storage.UploadRequest{PathRequest: p.path(rel), Size: size, Resume: resume, Allowed: comingFrom(a), Rights: rights})
}

// RequestDownload lets a client read one file, or a directory as an archive.
func (s *Service) RequestDownload(ctx context.Context, a authz.Actor, ref, path string, archive bool) (Ticket, error) {
	decide := func(ref string) (place, error) { return s.toRead(ctx, a, ref, PermitDownload, "download files") }
	p, rights, err := s.entitled(ctx, a, ref, decide)
	if err != nil {
		return Ticket{}, err
	}
	rel, err := filePath(path)
	if err != nil {
		return Ticket{}, err
	}
	return s.ticket(ctx, p, "begin the download of "+rel, storage.PathDownload, "/download",
		storage.DownloadRequest{PathRequest: p.path(rel), Archive: archive, Allowed: comingFrom(a), Rights: rights})
}

// RequestArchive lets a client read several paths as one archive; filename may be "".
func (s *Service) RequestArchive(ctx context.Context, a authz.Actor, ref string, files []string, filename string) (Ticket, error) {
	decide := func(ref string) (place, error) { return s.toRead(ctx, a, ref, PermitDownload, "download files") }
	p, rights, err := s.entitled(ctx, a, ref, decide)
	if err != nil {
		return Ticket{}, err
	}
	if len(files) == 0 || len(files) > maxFiles {
		return Ticket{}, fault.Invalidf("this takes 1 to %d paths, not %d", maxFiles, len(files))
	}
	paths := make([]string, len(files))
	for i, f := range files {
		if paths[i], err = filePath(f); err != nil {
			return Ticket{}, err
		}
	}
	slices.Sort(paths)
	paths = slices.Compact(paths)
	if len(filename) > 255 || strings.ContainsAny(filename, "/\\\x00\r\n\"") {
		return Ticket{}, fault.Invalidf("%.80q is no name for an archive", filename)
	}
	return s.ticket(ctx, p, "begin the download of an archive", storage.PathArchive, "/download-archive",
		storage.ArchiveRequest{Volume: p.host.Volume, VFID: p.vfid, Files: paths, Filename: filename,
			Allowed: comingFrom(a), Rights: rights})
}

// usageTime bounds how long a proxy counts for Get.
const usageTime = 1500 * time.Millisecond

// usageFresh is how long Get uses an earlier count. Counting takes time in proportion to the number of files, so small folders are
// counted anew for nearly every request and large ones rarely.
func usageFresh(files int64) time.Duration {
	return time.Second + time.Duration(min(files, 600_000))*time.Millisecond
}

// Get is Find with a fresh count of what the folder holds, if the proxy has one soon.
func (s *Service) Get(ctx context.Context, a authz.Actor, ref string) (Folder, error) {
	f, err := s.find(ctx, a, ref, living)
	if err != nil || f.Effective == "" || !f.Status.Readable() || f.Status == cluster.FolderPerforming {
		return f, err
	}
	now := s.d.Clock()
	p, err := placeOf(f)
	if err != nil || f.SizedAt != nil && f.Complete && f.Files != nil && now.Sub(*f.SizedAt) < usageFresh(*f.Files) {
		return f, nil
	}
	u, err := s.count(ctx, p, usageTime)
	if err != nil {
		return f, nil // what was known before is all that can be said
	}
	f.Files, f.Bytes, f.Complete, f.SizedAt = &u.FileCount, &u.UsedBytes, u.Complete, &u.At
	return f, nil
}

// count asks a proxy what a folder holds and keeps the answer.
func (s *Service) count(ctx context.Context, p place, within time.Duration) (Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, within+time.Second)
	defer cancel()
	var u Usage
	req := storage.FolderRequest{Volume: p.host.Volume, VFID: p.vfid, TimeoutMS: within.Milliseconds()}
	if err := s.ask(ctx, p, "count files", "GET", storage.PathFolderUsage, req, &u); err != nil {
		return u, err
	}
	if u.At.IsZero() {
		u.At = s.d.Clock().UTC()
	}
	err := s.d.Store.SetFolderSize(ctx, dbgen.SetFolderSizeParams{ID: string(p.ID), NumFiles: &u.FileCount, CurSize: &u.UsedBytes,
		SizeComplete: u.Complete, SizedAt: &u.At})
	if err != nil {
		return u, fmt.Errorf("store the size of folder %s: %w", p.Name, err)
	}
	return u, nil
}

// Usage counts what a folder holds (superadmins); host "" is the folder's.
func (s *Service) Usage(ctx context.Context, a authz.Actor, host, ref string) (Usage, error) {
	if err := authz.Folders.Need(a, authz.Administer, authz.Object{}, "count files of folders"); err != nil {
		return Usage{}, err
	}
	f, err := s.onHost(ctx, a, host, ref)
	if err != nil {
		return Usage{}, err
	}
	p, err := placeOf(f)
	if err != nil {
		return Usage{}, err
	}
	return s.count(ctx, p, 30*time.Second)
}

// onHost finds a folder that lies on the host, if one is named.
func (s *Service) onHost(ctx context.Context, a authz.Actor, host, ref string) (Folder, error) {
	f, err := s.find(ctx, a, ref, living)
	if err != nil {
		return f, err
	}
	if host != "" && host != f.Host {
		return f, authz.NotFound(noun, ref+" on "+host)
	}
	return f, nil
}

// UsedBytes is Usage without the number of files (superadmins).
func (s *Service) UsedBytes(ctx context.Context, a authz.Actor, host, ref string) (int64, error) {
	u, err := s.Usage(ctx, a, host, ref)
	return u.UsedBytes, err
}
