//go:build !cgo

package nvmlhelper

import (
	"context"
	"io"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/fault"
)

// noCgo stands for the cards in a build that cannot load NVIDIA's library.
type noCgo struct{}

func open(io.Writer) cards { return noCgo{} }

func (noCgo) why() error {
	return fault.Unavailablef("this %s was built without cgo and cannot load NVIDIA's library", nvmlwire.Program).
		WithNext("build it with make nvml where there is a C compiler")
}

func (n noCgo) Look() (nvmlwire.Facts, error)                     { return nvmlwire.Facts{}, n.why() }
func (n noCgo) Sample() (nvmlwire.Sample, error)                  { return nvmlwire.Sample{}, n.why() }
func (n noCgo) Watch(ctx context.Context, _ func(nvmlwire.Event)) { <-ctx.Done() }
