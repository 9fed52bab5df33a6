package cli

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

// maxUploads bounds how many files one command uploads.
const maxUploads = 1000

// uploadName is the path a local file gets in the session: the same relative path, or
// the bare name of a file from elsewhere.
func uploadName(local string) string {
	clean := filepath.Clean(local)
	if filepath.IsLocal(clean) {
		return filepath.ToSlash(clean)
	}
	return filepath.ToSlash(filepath.Base(clean))
}

// collectUploads lists files and, for directories, all files below them.
func collectUploads(names []string) ([]api.Upload, error) {
	var all []api.Upload
	for _, name := range names {
		target := uploadName(name)
		err := filepath.WalkDir(name, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := os.Stat(p)
			if err != nil {
				return err
			}
			switch {
			case info.IsDir() && d.Type()&fs.ModeSymlink != 0, info.IsDir():
				return nil
			case !info.Mode().IsRegular():
				return fmt.Errorf("%s is not a regular file", p)
			case info.Size() >= api.MaxUploadSize:
				return frame.Hint(
					fmt.Errorf(
						"%s has %s; only files below %s can be uploaded into a session", p, frame.BytesText(float64(info.Size())),
						frame.BytesText(api.MaxUploadSize),
					),
					"split it, or let the session fetch it",
				)
			case len(all) == maxUploads:
				return fmt.Errorf("more than %d files", maxUploads)
			}
			rel, err := filepath.Rel(name, p)
			if err != nil {
				return err
			}
			all = append(
				all, api.Upload{Path: path.Join(target, filepath.ToSlash(rel)), Open: func() (io.ReadCloser, error) { return os.Open(p) }},
			)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("upload %s: %w", name, err)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("upload %v: there are no files", names)
	}
	return all, nil
}
