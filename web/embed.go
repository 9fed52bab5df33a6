//go:build console

package web

import (
	"embed"
	"io/fs"
)

//go:embed all:dist
var dist embed.FS

var console = must(fs.Sub(dist, "dist"))

func must(files fs.FS, err error) fs.FS {
	if err != nil {
		panic(err) // dist is a valid path
	}
	return files
}
