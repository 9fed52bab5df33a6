//go:build !console

package web

import "io/fs"

var console fs.FS
