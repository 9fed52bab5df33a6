package folder

import (
	"context"
	"net/url"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/wire/storage"
)

// Import copies from an object store into a folder and returns the id of the background task. The keys of the store go
// to the proxy and are kept nowhere else; a task that its proxy never began is not begun again.
func (s *Service) Import(ctx context.Context, a authz.Actor, ref string, in TransferInput) (task string, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.import", ref)
	defer end(&err)
	p, err := s.toWrite(ctx, a, ref, cluster.ReadWrite, PermitUpload, "import files")
	if err != nil {
		return "", err
	}
	return s.transfer(ctx, a, p, in, taskImport, storage.PathImport)
}

// Export copies from a folder to an object store and returns the id of the background task.
func (s *Service) Export(ctx context.Context, a authz.Actor, ref string, in TransferInput) (task string, err error) {
	p, err := s.toRead(ctx, a, ref, PermitDownload, "export files")
	if err != nil {
		return "", err
	}
	return s.transfer(ctx, a, p, in, taskExport, storage.PathExport)
}

func (s *Service) transfer(ctx context.Context, a authz.Actor, p place, in TransferInput, kind, path string) (string, error) {
	rel, err := filePath(in.Path)
	if err != nil {
		return "", err
	}
	if err := checkStore(in); err != nil {
		return "", err
	}
	return s.begin(ctx, a, p, kind, path, func(id string) any {
		return storage.TransferRequest{PathRequest: p.path(rel), TaskID: id, Store: in.Store, Prefix: in.Prefix}
	})
}

func checkStore(in TransferInput) error {
	u, err := url.Parse(in.Store.Endpoint)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" ||
		u.RawQuery != "":
		return fault.Invalidf("the endpoint of the object store is no address").WithNext("write https://host or https://host:port")
	case in.Store.Bucket == "" || len(in.Store.Bucket) > 255 || strings.ContainsAny(in.Store.Bucket, "/\x00"):
		return fault.Invalidf("%.80q is no bucket", in.Store.Bucket)
	case len(in.Prefix) > 1024 || strings.ContainsRune(in.Prefix, 0):
		return fault.Invalidf("the prefix has more than 1024 bytes or a zero byte")
	case len(in.Store.AccessKey) > 1024 || len(in.Store.SecretKey) > 1024 || len(in.Store.Region) > 128:
		return fault.Invalidf("the keys or the region of the object store are too long")
	}
	return nil
}
