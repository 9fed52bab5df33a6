//go:build cgo

package nvmlhelper

import (
	"io"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func open(errs io.Writer) cards { return newLibrary(nvml.New(), os.DirFS("/sys"), errs) }
