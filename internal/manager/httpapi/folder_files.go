package httpapi

import (
	"math"
	"net/http"
	"strings"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/httpapi/params"
)

const (
	// maxPaths bounds the paths of one request, maxNewDirectories those that are made at once.
	maxPaths          = 10_000
	maxNewDirectories = 50
)

// folderFileRoutes are those of the files inside folders. Bytes never pass here: clients get tokens for a storage proxy.
func (a *API) folderFileRoutes() {
	a.onFolders(unfrozen, a.makeDirectories, "POST /folders/{v}/mkdir")
	a.onFolders(unfrozen, a.requestUpload, "POST /folders/{v}/request-upload")
	a.onFolders(signedOnly, a.requestDownload, "POST /folders/{v}/request-download")
	a.onFolders(signedOnly, a.requestArchive, "POST /folders/{v}/request-download-archive")
	a.onFolders(unfrozen, a.renameFile, "POST /folders/{v}/rename-file", "POST /folders/{v}/rename_file")
	a.onFolders(unfrozen, a.moveFile, "POST /folders/{v}/move-file", "POST /folders/{v}/move_file")
	a.onFolders(unfrozen, a.deleteFiles, "POST /folders/{v}/delete-files", "DELETE /folders/{v}/delete-files",
		"POST /folders/{v}/delete_files", "DELETE /folders/{v}/delete_files")
	a.onFolders(unfrozen, a.deleteFilesAsync, "POST /folders/{v}/delete-files-async", "DELETE /folders/{v}/delete-files-async")
	a.onFolders(signedOnly, a.listFiles, "GET /folders/{v}/files")
	a.onFolders(unfrozen, a.transfer(a.importFiles), "POST /folders/{v}/import") // ours
	a.onFolders(unfrozen, a.transfer(a.exportFiles), "POST /folders/{v}/export") // ours
}

// paths reads a list of paths that must not be empty.
func paths(p *params.Set, names string, most int) []string {
	list := p.List(names)
	switch {
	case len(list) == 0 && p.Err() == nil:
		p.Fail(names, "is required")
	case len(list) > most:
		p.Fail(names, "has %d paths; %d are allowed at once", len(list), most)
	}
	return list
}

// resultsOf says of every path what became of it.
func resultsOf(r folder.Results) api.PathsReply {
	out := api.PathsReply{Results: api.PathResults{Success: []api.PathResult{}, Failed: []api.PathResult{}}}
	for _, one := range r.Success {
		out.Results.Success = append(out.Results.Success, api.PathResult{Msg: orNil(one.Msg), Item: one.Item})
	}
	for _, one := range r.Failed {
		out.Results.Failed = append(out.Results.Failed, api.PathResult{Msg: &one.Msg, Item: one.Item})
	}
	return out
}

func (a *API) makeDirectories(c *call, p *params.Set) error {
	in := folder.MkdirInput{
		Paths: paths(p, "path|paths", maxNewDirectories), Parents: p.Flag("parents", true), ExistOK: p.Flag("exist_ok|existOk", false),
	}
	if err := p.Err(); err != nil {
		return err
	}
	r, err := a.folders.Mkdir(c.ctx(), c.actor, c.r.PathValue("v"), in)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if len(r.Failed) > 0 {
		status = http.StatusMultiStatus
	}
	return c.json(status, resultsOf(r))
}

func ticketOf(t folder.Ticket) api.Ticket {
	return api.Ticket{Token: t.Token, URL: t.URL, Upload: t.Upload}
}

func (a *API) requestUpload(c *call, p *params.Set) error {
	path, size, resume := p.Need("path"), p.Number("size", -1, 0, math.MaxInt64), p.Text("resume", "")
	if !p.Has("size") {
		p.Fail("size", "is required")
	}
	if err := p.Err(); err != nil {
		return err
	}
	t, err := a.folders.RequestUpload(c.ctx(), c.actor, c.r.PathValue("v"), path, int64(size), resume)
	if err != nil {
		return err
	}
	return c.ok(ticketOf(t))
}

func (a *API) requestDownload(c *call, p *params.Set) error {
	path, archive := p.Need("path|file"), p.Flag("archive", false)
	if err := p.Err(); err != nil {
		return err
	}
	t, err := a.folders.RequestDownload(c.ctx(), c.actor, c.r.PathValue("v"), path, archive)
	if err != nil {
		return err
	}
	return c.ok(ticketOf(t))
}

func (a *API) requestArchive(c *call, p *params.Set) error {
	files, name := paths(p, "files|paths", maxPaths), p.Text("filename", "")
	if err := p.Err(); err != nil {
		return err
	}
	t, err := a.folders.RequestArchive(c.ctx(), c.actor, c.r.PathValue("v"), files, name)
	if err != nil {
		return err
	}
	return c.ok(ticketOf(t))
}

func (a *API) renameFile(c *call, p *params.Set) error {
	path, name := p.Need("target_path|targetPath"), p.Need("new_name|newName")
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.folders.RenameFile(c.ctx(), c.actor, c.r.PathValue("v"), path, name); err != nil {
		return err
	}
	return c.ok(api.Empty{})
}

func (a *API) moveFile(c *call, p *params.Set) error {
	src, dst := p.Need("src|src_path"), p.Need("dst|dst_path")
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.folders.MoveFile(c.ctx(), c.actor, c.r.PathValue("v"), src, dst); err != nil {
		return err
	}
	return c.ok(api.Empty{})
}

// deleteFiles is an error when any path stays: clients look at nothing but the status.
func (a *API) deleteFiles(c *call, p *params.Set) error {
	files, recursive := paths(p, "files", maxPaths), p.Flag("recursive", false)
	if err := p.Err(); err != nil {
		return err
	}
	r, err := a.folders.DeleteFiles(c.ctx(), c.actor, c.r.PathValue("v"), files, recursive)
	if err != nil {
		return err
	}
	if len(r.Failed) == 0 {
		return c.ok(api.Empty{})
	}
	var why []string
	for _, f := range r.Failed[:min(len(r.Failed), 5)] {
		why = append(why, f.Item+": "+f.Msg)
	}
	return fault.Invalidf("%d of %d paths were not deleted: %s", len(r.Failed), len(files), strings.Join(why, "; ")).
		WithReason("vfolder-operation-failed").WithData(resultsOf(r)).WithNext("list the directory and delete what is left")
}

func (a *API) deleteFilesAsync(c *call, p *params.Set) error {
	files, recursive := paths(p, "files", maxPaths), p.Flag("recursive", false)
	if err := p.Err(); err != nil {
		return err
	}
	task, err := a.folders.DeleteFilesAsync(c.ctx(), c.actor, c.r.PathValue("v"), files, recursive)
	if err != nil {
		return err
	}
	return c.json(http.StatusAccepted, api.TaskStarted{TaskID: task})
}

// fileTime has all digits of the fraction, as older clients need them.
func fileTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000+00:00") }

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

func (a *API) listFiles(c *call, p *params.Set) error {
	path, after, limit := p.Text("path", "."), p.Text("after", ""), p.Number("limit", 0, 0, folder.MaxListing)
	if err := p.Err(); err != nil {
		return err
	}
	l, err := a.folders.ListFiles(c.ctx(), c.actor, c.r.PathValue("v"), path, after, limit)
	if err != nil {
		return err
	}
	items, old := make([]api.FolderEntry, len(l.Items)), make([]api.FileInfo, len(l.Items))
	for i, e := range l.Items {
		items[i] = api.FolderEntry{
			Name: e.Name, Type: string(e.Type), Size: e.Stat.Size, Mode: e.Stat.Mode,
			Created: fileTime(e.Stat.Created), Modified: fileTime(e.Stat.Modified), Target: e.Target,
		}
		modified := seconds(e.Stat.Modified)
		old[i] = api.FileInfo{
			Name: e.Name, Mode: e.Stat.Mode, Size: e.Stat.Size, CTime: seconds(e.Stat.Created), MTime: modified, ATime: modified,
		}
	}
	out := api.FolderPage{Items: items, Files: api.TextOf(old), Truncated: l.Cut}
	if l.Cut {
		out.Next = l.Next
	}
	return c.ok(out)
}

// transfer makes a handler of a copy between a folder and an object store.
func (a *API) transfer(start func(c *call, in folder.TransferInput) (task string, err error)) folderHandler {
	return func(c *call, p *params.Set) error {
		s := p.Object("store")
		in := folder.TransferInput{Path: p.Text("path", "."), Prefix: p.Text("prefix", ""), Store: folder.ObjectStore{
			Endpoint: s.Need("endpoint"), Region: s.Text("region", ""), Bucket: s.Need("bucket"), AccessKey: s.Text("access_key", ""),
			SecretKey: s.Text("secret_key", ""),
		}}
		if err := p.Err(); err != nil {
			return err
		}
		task, err := start(c, in)
		if err != nil {
			return err
		}
		return c.json(http.StatusAccepted, api.TaskStarted{TaskID: task})
	}
}

func (a *API) importFiles(c *call, in folder.TransferInput) (string, error) {
	return a.folders.Import(c.ctx(), c.actor, c.r.PathValue("v"), in)
}

func (a *API) exportFiles(c *call, in folder.TransferInput) (string, error) {
	return a.folders.Export(c.ctx(), c.actor, c.r.PathValue("v"), in)
}
