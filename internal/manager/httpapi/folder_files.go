package httpapi

import (
	"math"
	"net/http"
	"strings"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/folder"
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
func paths(p *params, names string, most int) []string {
	list := p.list(names)
	switch {
	case len(list) == 0 && len(p.bad) == 0:
		p.fail(names, "is required")
	case len(list) > most:
		p.fail(names, "has %d paths; %d are allowed at once", len(list), most)
	}
	return list
}

// resultsOf says of every path what became of it.
func resultsOf(r folder.Results) object {
	success, failed := []object{}, []object{}
	for _, one := range r.Success {
		success = append(success, object{"msg": orNull(one.Msg), "item": one.Item})
	}
	for _, one := range r.Failed {
		failed = append(failed, object{"msg": one.Msg, "item": one.Item})
	}
	return object{"success": success, "failed": failed}
}

func (a *API) makeDirectories(c *call, p *params) error {
	in := folder.MkdirInput{Paths: paths(p, "path|paths", maxNewDirectories), Parents: p.flag("parents", true), ExistOK: p.flag("exist_ok|existOk", false)}
	if err := p.err(); err != nil {
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
	return c.json(status, object{"results": resultsOf(r)})
}

func ticketOf(t folder.Ticket) object { return object{"token": t.Token, "url": t.URL} }

func (a *API) requestUpload(c *call, p *params) error {
	path, size := p.need("path"), p.number("size", -1, 0, math.MaxInt64)
	if !p.has("size") {
		p.fail("size", "is required")
	}
	if err := p.err(); err != nil {
		return err
	}
	t, err := a.folders.RequestUpload(c.ctx(), c.actor, c.r.PathValue("v"), path, int64(size))
	if err != nil {
		return err
	}
	return c.ok(ticketOf(t))
}

func (a *API) requestDownload(c *call, p *params) error {
	path, archive := p.need("path|file"), p.flag("archive", false)
	if err := p.err(); err != nil {
		return err
	}
	t, err := a.folders.RequestDownload(c.ctx(), c.actor, c.r.PathValue("v"), path, archive)
	if err != nil {
		return err
	}
	return c.ok(ticketOf(t))
}

func (a *API) requestArchive(c *call, p *params) error {
	files, name := paths(p, "files|paths", maxPaths), p.text("filename", "")
	if err := p.err(); err != nil {
		return err
	}
	t, err := a.folders.RequestArchive(c.ctx(), c.actor, c.r.PathValue("v"), files, name)
	if err != nil {
		return err
	}
	return c.ok(ticketOf(t))
}

func (a *API) renameFile(c *call, p *params) error {
	path, name := p.need("target_path|targetPath"), p.need("new_name|newName")
	if err := p.err(); err != nil {
		return err
	}
	if err := a.folders.RenameFile(c.ctx(), c.actor, c.r.PathValue("v"), path, name); err != nil {
		return err
	}
	return c.ok(object{})
}

func (a *API) moveFile(c *call, p *params) error {
	src, dst := p.need("src|src_path"), p.need("dst|dst_path")
	if err := p.err(); err != nil {
		return err
	}
	if err := a.folders.MoveFile(c.ctx(), c.actor, c.r.PathValue("v"), src, dst); err != nil {
		return err
	}
	return c.ok(object{})
}

// deleteFiles is an error when any path stays: clients look at nothing but the status.
func (a *API) deleteFiles(c *call, p *params) error {
	files, recursive := paths(p, "files", maxPaths), p.flag("recursive", false)
	if err := p.err(); err != nil {
		return err
	}
	r, err := a.folders.DeleteFiles(c.ctx(), c.actor, c.r.PathValue("v"), files, recursive)
	if err != nil {
		return err
	}
	if len(r.Failed) == 0 {
		return c.ok(object{})
	}
	var why []string
	for _, f := range r.Failed[:min(len(r.Failed), 5)] {
		why = append(why, f.Item+": "+f.Msg)
	}
	return fault.Invalidf("%d of %d paths were not deleted: %s", len(r.Failed), len(files), strings.Join(why, "; ")).
		WithReason("vfolder-operation-failed").WithData(object{"results": resultsOf(r)}).WithNext("list the directory and delete what is left")
}

func (a *API) deleteFilesAsync(c *call, p *params) error {
	files, recursive := paths(p, "files", maxPaths), p.flag("recursive", false)
	if err := p.err(); err != nil {
		return err
	}
	task, err := a.folders.DeleteFilesAsync(c.ctx(), c.actor, c.r.PathValue("v"), files, recursive)
	if err != nil {
		return err
	}
	return c.json(http.StatusAccepted, object{"bgtask_id": task})
}

// fileTime has all digits of the fraction, as older clients need them.
func fileTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000+00:00") }

// oldEntry is an entry as clients before 24.03 read it, inside of a text.
type oldEntry struct {
	Filename string  `json:"filename"`
	Mode     string  `json:"mode"`
	Size     int64   `json:"size"`
	Ctime    float64 `json:"ctime"`
	Mtime    float64 `json:"mtime"`
	Atime    float64 `json:"atime"`
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

func (a *API) listFiles(c *call, p *params) error {
	path, after, limit := p.text("path", "."), p.text("after", ""), p.number("limit", 0, 0, folder.MaxListing)
	if err := p.err(); err != nil {
		return err
	}
	l, err := a.folders.ListFiles(c.ctx(), c.actor, c.r.PathValue("v"), path, after, limit)
	if err != nil {
		return err
	}
	items, old := make([]object, len(l.Items)), make([]oldEntry, len(l.Items))
	for i, e := range l.Items {
		items[i] = object{"name": e.Name, "type": e.Type, "size": e.Stat.Size, "mode": e.Stat.Mode, "created": fileTime(e.Stat.Created), "modified": fileTime(e.Stat.Modified)}
		if e.Target != "" {
			items[i]["symlink_target"] = e.Target
		}
		modified := seconds(e.Stat.Modified)
		old[i] = oldEntry{Filename: e.Name, Mode: e.Stat.Mode, Size: e.Stat.Size, Ctime: seconds(e.Stat.Created), Mtime: modified, Atime: modified}
	}
	o := object{"items": items, "files": jsonText(old)}
	if l.Cut {
		o["truncated"], o["next"] = true, l.Next
	}
	return c.ok(o)
}

// transfer makes a handler of a copy between a folder and an object store.
func (a *API) transfer(start func(c *call, in folder.TransferInput) (task string, err error)) folderHandler {
	return func(c *call, p *params) error {
		s := p.object("store")
		in := folder.TransferInput{Path: p.text("path", "."), Prefix: p.text("prefix", ""), Store: folder.ObjectStore{
			Endpoint: s.need("endpoint"), Region: s.text("region", ""), Bucket: s.need("bucket"), AccessKey: s.text("access_key", ""), SecretKey: s.text("secret_key", ""),
		}}
		if err := p.err(); err != nil {
			return err
		}
		task, err := start(c, in)
		if err != nil {
			return err
		}
		return c.json(http.StatusAccepted, object{"bgtask_id": task})
	}
}

func (a *API) importFiles(c *call, in folder.TransferInput) (string, error) {
	return a.folders.Import(c.ctx(), c.actor, c.r.PathValue("v"), in)
}

func (a *API) exportFiles(c *call, in folder.TransferInput) (string, error) {
	return a.folders.Export(c.ctx(), c.actor, c.r.PathValue("v"), in)
}
