package docker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/image"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// imageCache holds image configurations by id; the content of an id never changes, only the
// references to it do.
type imageCache struct {
	mu   sync.Mutex
	byID map[string]runtime.Image
}

func (c *imageCache) get(id string) (runtime.Image, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	img, ok := c.byID[id]
	return img, ok
}

func (c *imageCache) put(img runtime.Image) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byID == nil {
		c.byID = map[string]runtime.Image{}
	}
	c.byID[img.ID] = img
}

func (c *imageCache) keep(ids map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.byID {
		if !ids[id] {
			delete(c.byID, id)
		}
	}
}

// checkReference refuses what is neither an image reference nor an image id, before it becomes
// part of a request's path.
func checkReference(ref string) error {
	if _, err := reference.ParseAnyReference(ref); err != nil {
		return fault.Invalidf("%q is not the name of an image", ref).WithCause(err).
			WithNext("write it like name:tag, registry.example.org/name:tag or sha256:...")
	}
	return nil
}

// Image returns one image by reference or id.
func (r *Runtime) Image(ctx context.Context, ref string) (runtime.Image, error) {
	if err := checkReference(ref); err != nil {
		return runtime.Image{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, shortCall)
	defer cancel()
	res, err := r.api.ImageInspect(ctx, ref)
	if err != nil {
		if cerrdefs.IsNotFound(err) {
			return runtime.Image{}, missingImage(ref, err)
		}
		return runtime.Image{}, r.failure(err, "inspect image %s", ref)
	}
	img := imageOfInspect(res.InspectResponse)
	r.images.put(img)
	return img, nil
}

func imageOfInspect(in image.InspectResponse) runtime.Image {
	img := runtime.Image{
		ID: in.ID, References: in.RepoTags, Digests: in.RepoDigests,
		Architecture: wireArch(in.Architecture), SizeBytes: in.Size, CreatedAt: engineTime(in.Created),
		Labels: map[string]string{},
	}
	if in.Config != nil {
		maps.Copy(img.Labels, in.Config.Labels)
		// Left in images that were committed from a session by other means: never the image's own.
		for _, l := range identityLabels {
			delete(img.Labels, l)
		}
		img.Entrypoint, img.Cmd, img.User, img.Env = some(in.Config.Entrypoint), some(in.Config.Cmd), in.Config.User, some(in.Config.Env)
		img.Volumes = some(slices.Sorted(maps.Keys(in.Config.Volumes)))
	}
	return img
}

// some makes the empty list nil: engines answer either for "none".
func some(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	return list
}

// Images lists the images that have a name. Each image's configuration is asked for once.
func (r *Runtime) Images(ctx context.Context) ([]runtime.Image, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*shortCall)
	defer cancel()
	r.sweepProbes(ctx)
	res, err := r.api.ImageList(ctx, client.ImageListOptions{})
	if err != nil {
		return nil, r.failure(err, "list images")
	}
	found := make([]*runtime.Image, len(res.Items))
	ids := make(map[string]bool, len(res.Items))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i, s := range res.Items {
		ids[s.ID] = true
		tags, digests := named(s.RepoTags), named(s.RepoDigests)
		if len(tags) == 0 && len(digests) == 0 {
			continue // an untagged leftover
		}
		if img, ok := r.images.get(s.ID); ok {
			img.References, img.Digests = tags, digests
			found[i] = &img
			continue
		}
		g.Go(func() error {
			img, err := r.Image(gctx, s.ID)
			if fault.Is(err, fault.NotFound) {
				return nil // removed since the listing
			}
			img.References, img.Digests = tags, digests
			found[i] = &img
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	r.images.keep(ids)
	r.files.keep(ids)
	out := make([]runtime.Image, 0, len(found))
	for _, img := range found {
		if img != nil {
			out = append(out, *img)
		}
	}
	return out, nil
}

// named drops the engine's placeholders for "no name".
func named(refs []string) []string {
	return slices.DeleteFunc(slices.Clone(refs), func(s string) bool { return strings.HasPrefix(s, "<none>") })
}

// Pull fetches an image; see runtime.Runtime. It ends when the engine reports nothing for a while.
func (r *Runtime) Pull(ctx context.Context, ref, digest string, progress func(runtime.PullProgress)) (runtime.Image, error) {
	if err := checkReference(ref); err != nil {
		return runtime.Image{}, err
	}
	if err := r.pull(ctx, ref, progress); err != nil {
		return runtime.Image{}, err
	}
	img, err := r.Image(ctx, ref)
	if err != nil {
		return runtime.Image{}, err
	}
	return img, matchDigest(img, ref, digest)
}

func (r *Runtime) pull(ctx context.Context, ref string, progress func(runtime.PullProgress)) error {
	idle, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(r.cfg.PullIdle, func() { cancel(context.DeadlineExceeded) })
	defer quiet.Stop()
	fail := func(err error) error {
		if errors.Is(context.Cause(idle), context.DeadlineExceeded) && ctx.Err() == nil {
			return fault.Unavailablef("pull image %s: nothing arrived for %s", ref, r.cfg.PullIdle).
				WithReason(runtime.ReasonPull).WithNext("look at the registry and the network, then try again")
		}
		return r.pullFailure(err, ref)
	}
	stream, err := r.api.ImagePull(idle, ref, client.ImagePullOptions{})
	if err != nil {
		return fail(err)
	}
	defer stream.Close()
	layers := map[string]jsonstream.Progress{}
	for msg, err := range stream.JSONMessages(idle) {
		if err != nil {
			if idle.Err() == nil { // the engine went away: registries speak through msg.Error
				return r.failure(err, "pull image %s", ref)
			}
			return fail(err)
		}
		quiet.Reset(r.cfg.PullIdle)
		if msg.Error != nil {
			return fail(msg.Error)
		}
		if progress != nil {
			progress(addProgress(layers, msg))
		}
	}
	if idle.Err() != nil {
		return fail(idle.Err())
	}
	return nil
}

// maxLayers bounds what a pull's progress remembers; images have at most 127.
const maxLayers = 512

// addProgress takes one message in and sums up over all layers. Only downloads count:
// extraction would count every byte a second time.
func addProgress(layers map[string]jsonstream.Progress, msg jsonstream.Message) runtime.PullProgress {
	if msg.ID != "" && (len(layers) < maxLayers || layers[msg.ID].Total > 0) {
		l := layers[msg.ID]
		switch {
		case msg.Status == "Downloading" && msg.Progress != nil:
			l.Current, l.Total = msg.Progress.Current, max(msg.Progress.Total, l.Total)
		case msg.Status == "Download complete" || msg.Status == "Pull complete":
			l.Current = l.Total
		}
		layers[msg.ID] = l
	}
	p := runtime.PullProgress{Message: strings.TrimSpace(msg.ID + " " + msg.Status)}
	for _, l := range layers {
		p.Current += l.Current
		p.Total += l.Total
	}
	return p
}

// pullFailure names the image and tells a missing image from a missing registry. Engines report
// both with various statuses, and inside the stream with none, so the text decides.
func (r *Runtime) pullFailure(err error, ref string) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return r.failure(err, "pull image %s", ref)
	}
	msg := strings.ToLower(err.Error())
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(msg, p) })
	}
	switch {
	case client.IsErrConnectionFailed(err), has("no space left"):
		return r.failure(err, "pull image %s", ref)
	case has("pull access denied", "repository does not exist", "manifest unknown", "not found", "name unknown"):
		return fault.NotFoundf("pull image %s: the registry does not have it, or not for us", ref).
			WithReason(runtime.ReasonPull).WithCause(r.aside("pull image "+ref, err)).
			WithNext("check the name and the tag, and the registry's credentials")
	case has("unauthorized", "authentication required", "denied"):
		return fault.Deniedf("pull image %s: the registry refuses", ref).
			WithReason(runtime.ReasonPull).WithCause(r.aside("pull image "+ref, err)).
			WithNext("check the registry's credentials")
	case has("no such host", "dial tcp", "connection refused", "timeout", "temporary failure", "server misbehaving", "tls:", "x509", "eof",
		"unreachable"):
		return fault.Unavailablef("pull image %s: the registry does not answer", ref).
			WithReason(runtime.ReasonPull).WithCause(r.aside("pull image "+ref, err)).
			WithNext("check the registry's address and the network of this host")
	default:
		return fault.New(fault.Internal, "pull image %s: the container engine refused it", ref).WithReason(runtime.ReasonPull).
			WithCause(r.aside("pull image "+ref, err)).WithNext(askAdministrator)
	}
}

// Commit makes an image of the container's file system. Its configuration is that of the image the
// container came from plus labels: nothing of the session's (runner, environment, identity)
// gets into it. The container is paused meanwhile.
func (r *Runtime) Commit(ctx context.Context, kernel cluster.KernelID, o runtime.Commit) (runtime.Image, error) {
	ref := o.Reference
	name, err := r.name(kernel)
	if err != nil {
		return runtime.Image{}, err
	}
	if _, err := reference.ParseNormalizedNamed(ref); err != nil || strings.Contains(ref, "@") {
		return runtime.Image{}, fault.Invalidf("%q cannot name a new image", ref).WithCause(err).WithNext("write it like name:tag")
	}
	ctx, cancel := context.WithTimeout(ctx, commitCall)
	defer cancel()
	c, err := r.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{Size: o.MaxBytes > 0})
	if err != nil {
		return runtime.Image{}, r.containerFailure(err, kernel, "inspect")
	}
	base, err := r.api.ImageInspect(ctx, c.Container.Image)
	if err != nil {
		return runtime.Image{}, r.failure(err, "inspect the image of kernel %s", kernel)
	}
	if grown := c.Container.SizeRw; grown != nil && o.MaxBytes > 0 && base.Size+*grown > o.MaxBytes {
		return runtime.Image{}, fault.Exhaustedf("image %s would have %d bytes, %d are allowed", ref, base.Size+*grown, o.MaxBytes).
			WithReason(runtime.ReasonImageSize).WithNext("delete files outside of mounted folders that the image does not need")
	}
	commit := func(more map[string]string) (client.ContainerCommitResult, error) {
		labels := map[string]string{}
		maps.Copy(labels, o.Labels)
		maps.Copy(labels, more)
		res, err := r.api.ContainerCommit(ctx, name, client.ContainerCommitOptions{
			Reference: ref, Comment: "berth commit", Config: commitConfig(base.InspectResponse, c.Container.Config, labels),
		})
		if err != nil {
			return res, r.containerFailure(err, kernel, "commit")
		}
		return res, nil
	}
	var res client.ContainerCommitResult
	if o.User.Session > 0 {
		pid := 0
		if st := c.Container.State; st != nil {
			pid = st.Pid
		}
		res, err = r.commitFor(ctx, kernel, pid, o.User, commit)
	} else {
		res, err = commit(nil)
	}
	if err != nil {
		return runtime.Image{}, err
	}
	return r.Image(ctx, res.ID)
}

// RemoveImage deletes an image; see runtime.Runtime.
func (r *Runtime) RemoveImage(ctx context.Context, ref, id string) error {
	if err := checkReference(ref); err != nil {
		return err
	}
	img, err := r.Image(ctx, id)
	if fault.Is(err, fault.NotFound) || err == nil && img.ID != id {
		return nil
	}
	if err != nil {
		return err
	}
	what := id
	if slices.ContainsFunc(img.References, func(other string) bool { return other != ref }) {
		if what = ref; !slices.Contains(img.References, ref) {
			return nil // others need it
		}
	}
	ctx, cancel := context.WithTimeout(ctx, removeCall)
	defer cancel()
	_, err = r.api.ImageRemove(ctx, what, client.ImageRemoveOptions{PruneChildren: true})
	switch {
	case err == nil || cerrdefs.IsNotFound(err):
		return nil
	case cerrdefs.IsConflict(err):
		return fault.Conflictf("image %s is in use", ref).WithReason(runtime.ReasonImageUse).WithCause(err)
	}
	return r.failure(err, "remove image %s", ref)
}

// commitConfig builds the new image's configuration. The engine fills every missing field from the
// container's, so each field that the container changed must be given, even when it is empty.
func commitConfig(base image.InspectResponse, session *container.Config, labels map[string]string) *container.Config {
	out := &container.Config{
		Entrypoint: []string{}, Cmd: []string{}, WorkingDir: "/", User: "0",
		Labels: map[string]string{}, Healthcheck: &container.HealthConfig{},
	}
	env := map[string]string{}
	if b := base.Config; b != nil {
		out.Entrypoint, out.Cmd = append(out.Entrypoint, b.Entrypoint...), append(out.Cmd, b.Cmd...)
		out.StopSignal, out.Shell, out.Volumes = b.StopSignal, b.Shell, b.Volumes
		if b.WorkingDir != "" {
			out.WorkingDir = b.WorkingDir
		}
		if b.User != "" {
			out.User = b.User
		}
		if b.Healthcheck != nil {
			out.Healthcheck = b.Healthcheck
		}
		maps.Copy(out.Labels, b.Labels)
		for _, kv := range b.Env {
			k, v, _ := strings.Cut(kv, "=")
			env[k] = v
		}
	}
	// A variable of the session can be emptied but not taken away.
	if session != nil {
		for _, kv := range session.Env {
			if k, _, _ := strings.Cut(kv, "="); k != "" {
				if _, ok := env[k]; !ok {
					env[k] = ""
				}
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out.Env = append(out.Env, k+"="+env[k])
	}
	for _, l := range identityLabels {
		if session != nil && session.Labels[l] != "" { // can be emptied but not taken away
			out.Labels[l] = ""
		}
	}
	maps.Copy(out.Labels, labels)
	return out
}
