package docker

import (
	"context"

	"github.com/moby/moby/client"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/fault"
)

var _ runtime.Disks = (*Runtime)(nil)

// DataDir is where the engine keeps images and layers, "" while it is not known or not on this host.
func (r *Runtime) DataDir(ctx context.Context) string {
	if !r.local() {
		return ""
	}
	if p := r.dataDir.Load(); p != nil {
		return *p
	}
	ctx, cancel := context.WithTimeout(ctx, shortCall)
	defer cancel()
	res, err := r.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return "" // asked again
	}
	r.dataDir.Store(&res.Info.DockerRootDir)
	return res.Info.DockerRootDir
}

// Layer measures what a running container wrote into its own file system; see runtime.Disks.
func (r *Runtime) Layer(ctx context.Context, o runtime.Observed, files int) (runtime.LayerUse, error) {
	if o.Phase != runtime.PhaseRunning || o.Pid <= 0 || !r.local() {
		return runtime.LayerUse{}, fault.Conflictf("kernel %s has no running container to measure", o.Identity.Kernel)
	}
	return r.stats.Layer(ctx, o.ID, o.Pid, files)
}
