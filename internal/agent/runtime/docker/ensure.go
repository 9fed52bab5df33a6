package docker

import (
	"context"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// capabilities is what PID 1 keeps of root's powers. The runner needs CHOWN, DAC_OVERRIDE and
// FOWNER to hand files to the session's user and to read what that user made, SETUID and SETGID
// to become that user for its children, and KILL to end them. Children hold none of
// these, and no-new-privileges keeps them from getting any.
var capabilities = []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"}

const (
	defaultShm  = 64 << 20
	defaultPids = 4096
)

// Ensure creates and starts the container of spec.Identity; see runtime.Runtime. The common case
// is three calls: create, start, inspect. Everything else is looked up only after create refused.
func (r *Runtime) Ensure(ctx context.Context, spec runtime.Spec) (runtime.Observed, error) {
	kernel := spec.Identity.Kernel
	name, err := r.name(kernel)
	if err != nil {
		return runtime.Observed{}, err
	}
	if err := r.check(spec); err != nil {
		return runtime.Observed{}, err
	}
	id, err := r.create(ctx, name, spec, imageOf(spec))
	switch {
	case err == nil:
	case cerrdefs.IsConflict(err):
		return r.adopt(ctx, name, spec)
	case imageMissing(err) && spec.Digest != "":
		// The digest is not an image id here; it may be that of the registry's manifest.
		image, err := r.imageWithDigest(ctx, spec.Image, spec.Digest)
		if err != nil {
			return runtime.Observed{}, err
		}
		id, err = r.create(ctx, name, spec, image)
		if cerrdefs.IsConflict(err) {
			return r.adopt(ctx, name, spec)
		}
		if err != nil {
			return runtime.Observed{}, r.refusal(err, "create", spec)
		}
	case imageMissing(err):
		return runtime.Observed{}, missingImage(spec.Image, err)
	default:
		return runtime.Observed{}, r.refusal(err, "create", spec)
	}
	return r.start(ctx, id, spec)
}

// check refuses specifications that the engine would accept although they are wrong.
func (r *Runtime) check(spec runtime.Spec) error {
	id := spec.Identity
	switch {
	case id.Cluster != r.cfg.Cluster || id.Agent != r.cfg.Agent:
		return fault.Invalidf("kernel %s belongs to cluster %q, agent %q; this runtime serves cluster %q, agent %q",
			id.Kernel, id.Cluster, id.Agent, r.cfg.Cluster, r.cfg.Agent)
	case len(spec.Entry) == 0:
		return fault.Invalidf("kernel %s has no command to start", id.Kernel)
	case spec.MemoryMax < 0 || spec.ShmSize < 0 || spec.PidsLimit < 0:
		return fault.Invalidf("kernel %s has a negative limit", id.Kernel)
	}
	if err := checkReference(spec.Image); err != nil {
		return err
	}
	for _, d := range spec.Devices {
		if err := r.checkDevice(id.Kernel, d); err != nil {
			return err
		}
	}
	if err := runtime.CheckNetworks(id, spec.Networks); err != nil {
		return err
	}
	if err := runtime.CheckGroups(id.Kernel, spec.Groups); err != nil {
		return err
	}
	for _, m := range spec.Mounts {
		if !strings.HasPrefix(m.Source, "/") || !strings.HasPrefix(m.Target, "/") {
			return fault.Invalidf("kernel %s mounts %q at %q: both must be absolute", id.Kernel, m.Source, m.Target)
		}
	}
	return nil
}

// checkDevice refuses device files that do not exist. The engine would refuse them only at the start, with errors that differ
// between versions.
func (r *Runtime) checkDevice(kernel cluster.KernelID, d runtime.DeviceNode) error {
	if err := runtime.CheckDevice(kernel, d); err != nil || !r.local() {
		return err
	}
	st, err := os.Stat(d.Source)
	if err != nil || st.Mode()&os.ModeDevice == 0 {
		return fault.NotFoundf("device %s is not on this host", d.Source).WithReason(runtime.ReasonDevice).WithCause(err).
			WithNext("look whether its driver is loaded")
	}
	return nil
}

// imageOf names the image so that a wanted content id needs no check afterwards.
func imageOf(spec runtime.Spec) string {
	if spec.Digest != "" {
		return spec.Digest
	}
	return spec.Image
}

func (r *Runtime) create(ctx context.Context, name string, spec runtime.Spec, image string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, createCall)
	defer cancel()
	no := false
	pids, shm := spec.PidsLimit, spec.ShmSize
	if pids == 0 {
		pids = defaultPids
	}
	if shm == 0 {
		shm = defaultShm
	}
	cpus, mems := cpusets(spec.CPUSet, r.numa)
	devices := make([]container.DeviceMapping, len(spec.Devices))
	for i, d := range spec.Devices {
		devices[i] = container.DeviceMapping{PathOnHost: d.Source, PathInContainer: d.Target, CgroupPermissions: d.Permissions}
	}
	groups := make([]string, len(spec.Groups))
	for i, g := range spec.Groups {
		groups[i] = strconv.Itoa(g)
	}
	var requests []container.DeviceRequest
	if len(spec.CDI) > 0 {
		requests = []container.DeviceRequest{{Driver: "cdi", DeviceIDs: spec.CDI}}
	}
	var network container.NetworkMode // the empty one is the engine's default
	if len(spec.Networks) > 0 {
		network = container.NetworkMode(spec.Networks[0].Name)
	}
	mounts := make([]mount.Mount, len(spec.Mounts))
	for i, m := range spec.Mounts {
		mounts[i] = mount.Mount{Type: mount.TypeBind, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly}
	}
	res, err := r.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: name,
		Config: &container.Config{
			Image:    image,
			Hostname: spec.Hostname,
			// The whole entry is the entrypoint: with a separate command, a commit could not tell
			// it from the image's own.
			Entrypoint: spec.Entry,
			Env:        spec.Env,
			WorkingDir: spec.WorkingDir,
			// PID 1 is root and gives its children to the session's user, whatever the image says.
			User:       "0:0",
			Labels:     labelsOf(spec.Identity),
			StopSignal: spec.StopSignal,
			// A check made for the image's own entrypoint means nothing for ours.
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		},
		HostConfig: &container.HostConfig{
			Mounts:      mounts,
			Tmpfs:       maps.Clone(spec.Tmpfs),
			ShmSize:     shm,
			CapDrop:     []string{"ALL"},
			CapAdd:      slices.Concat(capabilities, spec.CapAdd),
			GroupAdd:    groups,
			SecurityOpt: r.securityOptions(),
			MaskedPaths: hidden(),
			ExtraHosts:  spec.ExtraHosts,
			IpcMode:     container.IPCModePrivate,
			NetworkMode: network,
			DNS:         spec.Resolvers,
			Init:        &no,
			LogConfig: container.LogConfig{Type: "json-file", Config: map[string]string{
				"max-size": strconv.FormatInt(r.cfg.LogMaxBytes/2, 10), "max-file": "2",
			}},
			RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
			Resources: container.Resources{
				CpusetCpus: cpus,
				CpusetMems: mems,
				Memory:     spec.MemoryMax,
				MemorySwap: spec.MemoryMax, // equal to memory: no swap
				PidsLimit:  &pids,
				Ulimits:    r.limits.clamp(spec.Ulimits),
				Devices:    devices, DeviceRequests: requests,
			},
		},
	})
	return res.ID, err
}

// join connects a container that does not run yet to its second and later networks, because engines before API 1.44 accept
// only one network at the creation. A network that it has joined already is no error.
func (r *Runtime) join(ctx context.Context, id string, spec runtime.Spec) error {
	for _, n := range spec.Networks[min(1, len(spec.Networks)):] {
		nctx, cancel := context.WithTimeout(ctx, shortCall)
		_, err := r.api.NetworkConnect(nctx, n.Name, client.NetworkConnectOptions{Container: id})
		cancel()
		if err != nil && !strings.Contains(err.Error(), "already exists") {
			return r.networkFailure(err, spec, n.Name)
		}
	}
	return nil
}

// networkFailure turns an error of a connect into a fault, with a reason of its own for a network that does not exist.
func (r *Runtime) networkFailure(err error, spec runtime.Spec, name string) error {
	if text := strings.ToLower(err.Error()); cerrdefs.IsNotFound(err) && strings.Contains(text, "network") {
		return fault.NotFoundf("network %s is not on this host", name).WithReason(runtime.ReasonNetwork).
			WithCause(r.aside("connect to network "+name, err))
	}
	return r.failure(err, "connect the container of kernel %s to network %s", spec.Identity.Kernel, name)
}

// start starts a created container and reports what became of it.
func (r *Runtime) start(ctx context.Context, id string, spec runtime.Spec) (runtime.Observed, error) {
	kernel := spec.Identity.Kernel
	if err := r.join(ctx, id, spec); err != nil {
		return runtime.Observed{}, err
	}
	sctx, cancel := context.WithTimeout(ctx, startCall)
	defer cancel()
	if _, err := r.api.ContainerStart(sctx, id, client.ContainerStartOptions{}); err != nil {
		return runtime.Observed{}, r.refusal(err, "start", spec)
	}
	return r.inspect(ctx, id, kernel)
}

// refusal turns an error of a create or start into a fault, with a reason of its own for a device or a network that the engine
// does not have. Some engines refuse these at the creation, others at the start.
func (r *Runtime) refusal(err error, verb string, spec runtime.Spec) error {
	text := strings.ToLower(err.Error())
	if len(spec.CDI) > 0 && (strings.Contains(text, "cdi") || strings.Contains(text, "select device driver")) {
		return fault.NotFoundf("the engine cannot inject the devices %s", strings.Join(spec.CDI, ", ")).WithReason(runtime.ReasonDevice).
			WithCause(r.aside("inject devices", err)).
			WithNext("put their specification into /etc/cdi or /var/run/cdi; Docker reads them from version 25 on")
	}
	for _, n := range spec.Networks {
		if strings.Contains(text, "network "+strings.ToLower(n.Name)+" not found") {
			return fault.NotFoundf("network %s is not on this host", n.Name).WithReason(runtime.ReasonNetwork).
				WithCause(r.aside("connect to network "+n.Name, err))
		}
	}
	return r.failure(err, "%s the container of kernel %s", verb, spec.Identity.Kernel)
}

// A name can be taken by a container that cannot be inspected: one that is just being created or removed. adopt inspects it
// again with growing pauses, for about five seconds.
const (
	adoptTries = 10
	adoptPause = 5 * time.Millisecond
)

// adopt handles a name that is taken: by an earlier Ensure, by an older generation, or by a
// container that is just being removed.
func (r *Runtime) adopt(ctx context.Context, name string, spec runtime.Spec) (runtime.Observed, error) {
	kernel, generation := spec.Identity.Kernel, spec.Identity.Generation
	for try := range adoptTries {
		if try > 0 {
			select {
			case <-time.After(adoptPause << try):
			case <-ctx.Done():
				return runtime.Observed{}, r.failure(ctx.Err(), "wait for the container of kernel %s", kernel)
			}
		}
		o, err := r.inspect(ctx, name, kernel)
		if fault.Is(err, fault.NotFound) {
			// It went away between our create and our look.
			id, err := r.create(ctx, name, spec, imageOf(spec))
			if cerrdefs.IsConflict(err) {
				continue
			}
			if err != nil {
				return runtime.Observed{}, r.refusal(err, "create", spec)
			}
			return r.start(ctx, id, spec)
		}
		if err != nil {
			return runtime.Observed{}, err
		}
		if o.Identity.Generation != generation {
			return runtime.Observed{}, fault.Conflictf("kernel %s already has a container of generation %d, wanted is %d",
				kernel, o.Identity.Generation, generation).WithReason(runtime.ReasonGeneration).WithNext("remove that container first")
		}
		if o.Phase != runtime.PhaseCreated {
			return o, nil
		}
		started, err := r.start(ctx, o.ID, spec)
		if !fault.Is(err, fault.NotFound) {
			return started, err
		}
	}
	return runtime.Observed{}, fault.Conflictf("the container of kernel %s is still being made or removed by somebody else", kernel).
		WithNext("try again")
}

// imageMissing reports whether a create failed because the engine lacks the image.
func imageMissing(err error) bool {
	return cerrdefs.IsNotFound(err) && strings.Contains(strings.ToLower(err.Error()), "no such image")
}

func missingImage(reference string, cause error) error {
	return fault.NotFoundf("image %s is not on this host", reference).WithReason(runtime.ReasonImage).WithCause(aside{cause}).
		WithNext("pull or build it, then try again")
}

// imageWithDigest returns the id of the image of that reference when it has the digest, as
// content id or as the manifest of a registry.
func (r *Runtime) imageWithDigest(ctx context.Context, reference, digest string) (string, error) {
	img, err := r.Image(ctx, reference)
	if err != nil {
		return "", err
	}
	if err := matchDigest(img, reference, digest); err != nil {
		return "", err
	}
	return img.ID, nil
}

func matchDigest(img runtime.Image, reference, digest string) error {
	if digest == "" || img.ID == digest {
		return nil
	}
	for _, d := range img.Digests {
		if _, have, ok := strings.Cut(d, "@"); ok && have == digest {
			return nil
		}
	}
	return fault.Conflictf("image %s is %s on this host, expected is %s", reference, img.ID, digest).
		WithReason(runtime.ReasonDigest).WithNext("pull the image again, or rescan images if the new one is right")
}

// seconds rounds a grace up to what the engine takes.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }
