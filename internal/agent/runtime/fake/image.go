package fake

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// image is an image on the host with its files.
type image struct {
	runtime.Image
	files map[string][]byte
	links map[string]bool
}

// Remote is an image in a registry, as Pull meets it.
type Remote struct {
	Image runtime.Image
	Files map[string][]byte
	// Err makes the pull fail half way.
	Err error
}

// AddImage puts an image on the host; an empty ID is made up. It returns what Image would.
func (e *Engine) AddImage(img runtime.Image, files map[string][]byte) runtime.Image {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.addImage(img, files).Image
}

// LinkInImage makes a path of an image a symbolic link.
func (e *Engine) LinkInImage(ref, p string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	img, err := e.mustFind(ref)
	if err != nil {
		panic(err)
	}
	if img.links == nil {
		img.links = map[string]bool{}
	}
	img.links[p] = true
}

func (e *Engine) addImage(img runtime.Image, files map[string][]byte) *image {
	if img.ID == "" {
		e.nextImage++
		img.ID = fmt.Sprintf("sha256:%x", sha256.Sum256(fmt.Appendf(nil, "fake image %d", e.nextImage)))
	}
	if img.Architecture == "" {
		img.Architecture = e.opt.Info.Architecture
	}
	if img.SizeBytes == 0 {
		img.SizeBytes = 1 << 20
	}
	if old := e.images[img.ID]; old != nil && img.CreatedAt.IsZero() {
		img.CreatedAt = old.CreatedAt
	}
	if img.CreatedAt.IsZero() {
		img.CreatedAt = e.opt.Now()
	}
	img.Labels = maps.Clone(img.Labels)
	if img.Labels == nil {
		img.Labels = map[string]string{}
	}
	img.References = slices.Clone(img.References)
	for i, ref := range img.References {
		img.References[i] = normal(ref)
		for _, other := range e.images { // a reference names one image: the newest
			other.References = slices.DeleteFunc(slices.Clone(other.References), func(r string) bool { return r == img.References[i] })
		}
	}
	x := &image{Image: img, files: maps.Clone(files)}
	e.images[img.ID] = x
	return x
}

// RemoveImage takes an image away from the host.
func (e *Engine) RemoveImage(ref string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if img := e.findImage(ref); img != nil {
		delete(e.images, img.ID)
	}
}

// AddRemote makes an image available to Pull under a reference.
func (e *Engine) AddRemote(ref string, r Remote) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.remote[normal(ref)] = r
}

// normal adds the default tag.
func normal(ref string) string {
	if strings.Contains(ref, "@") || strings.LastIndexByte(ref, ':') > strings.LastIndexByte(ref, '/') {
		return ref
	}
	return ref + ":latest"
}

// findImage finds by id or reference; the engine's mutex is held.
func (e *Engine) findImage(ref string) *image {
	if img, ok := e.images[ref]; ok {
		return img
	}
	ref = normal(ref)
	for _, img := range e.images {
		if slices.Contains(img.References, ref) || slices.Contains(img.Digests, ref) {
			return img
		}
	}
	return nil
}

func checkReference(ref string) error {
	if ref == "" || ref != strings.TrimSpace(ref) || strings.Contains(ref, "..") || strings.ContainsAny(ref, " ?#%\n") {
		return fault.Invalidf("%q is not the name of an image", ref).
			WithNext("write it like name:tag, registry.example.org/name:tag or sha256:...")
	}
	return nil
}

func (e *Engine) mustFind(ref string) (*image, error) {
	if err := checkReference(ref); err != nil {
		return nil, err
	}
	if img := e.findImage(ref); img != nil {
		return img, nil
	}
	return nil, fault.NotFoundf("image %s is not on this host", ref).WithReason(runtime.ReasonImage).
		WithNext("pull or build it, then try again")
}

func matchDigest(img runtime.Image, ref, digest string) error {
	if digest == "" || img.ID == digest {
		return nil
	}
	for _, d := range img.Digests {
		if strings.HasSuffix(d, "@"+digest) {
			return nil
		}
	}
	return fault.Conflictf("image %s is %s on this host, expected is %s", ref, img.ID, digest).
		WithReason(runtime.ReasonDigest).WithNext("pull the image again, or rescan images if the new one is right")
}

func (img *image) copy() runtime.Image {
	out := img.Image
	out.Labels, out.References, out.Digests = maps.Clone(out.Labels), slices.Clone(out.References), slices.Clone(out.Digests)
	return out
}

// Images lists images that have a name.
func (r *Runtime) Images(ctx context.Context) ([]runtime.Image, error) {
	done, err := r.e.enter(ctx, Images, "")
	if err != nil {
		return nil, err
	}
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	out := []runtime.Image{}
	for _, id := range slices.Sorted(maps.Keys(r.e.images)) {
		if img := r.e.images[id]; len(img.References)+len(img.Digests) > 0 {
			out = append(out, img.copy())
		}
	}
	return out, done(nil)
}

// Image returns one image by reference or id.
func (r *Runtime) Image(ctx context.Context, ref string) (runtime.Image, error) {
	done, err := r.e.enter(ctx, Images, "")
	if err != nil {
		return runtime.Image{}, err
	}
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	img, err := r.e.mustFind(ref)
	if err != nil {
		return runtime.Image{}, err
	}
	return img.copy(), done(nil)
}

// ReadImageFile returns one file of an image; see runtime.Runtime.
func (r *Runtime) ReadImageFile(ctx context.Context, ref, file string, limit int64) ([]byte, error) {
	done, err := r.e.enter(ctx, Images, "")
	if err != nil {
		return nil, err
	}
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	img, err := r.e.mustFind(ref)
	if err != nil {
		return nil, err
	}
	file = path.Clean("/" + file)
	content, ok := img.files[file]
	switch {
	case !ok:
		return nil, fault.NotFoundf("image %s has no file %s", ref, file)
	case int64(len(content)) > limit:
		return nil, fault.Exhaustedf("file %s of image %s is larger than %d bytes", file, ref, limit)
	}
	return slices.Clone(content), done(nil)
}

// LinksInImage finds symbolic links on paths of an image; see runtime.Runtime.
func (r *Runtime) LinksInImage(ctx context.Context, ref string, paths []string) (map[string]string, error) {
	done, err := r.e.enter(ctx, Images, "")
	if err != nil {
		return nil, err
	}
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	img, err := r.e.mustFind(ref)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, p := range paths {
		out[p] = ""
		for _, step := range runtime.Steps(p) {
			if img.links[step] {
				out[p] = step
				break
			}
		}
	}
	return out, done(nil)
}

// Pull fetches an image that AddRemote made available.
func (r *Runtime) Pull(ctx context.Context, ref, digest string, progress func(runtime.PullProgress)) (runtime.Image, error) {
	if err := checkReference(ref); err != nil {
		return runtime.Image{}, err
	}
	done, err := r.e.enter(ctx, Pull, "")
	if err != nil {
		return runtime.Image{}, err
	}
	if progress == nil {
		progress = func(runtime.PullProgress) {}
	}
	r.e.mu.Lock()
	remote, ok := r.e.remote[normal(ref)]
	r.e.mu.Unlock()
	if !ok {
		return runtime.Image{}, fault.NotFoundf("pull image %s: the registry does not have it, or not for us", ref).
			WithReason(runtime.ReasonPull).WithNext("check the name and the tag, and the registry's credentials")
	}
	total := max(remote.Image.SizeBytes, 1<<20)
	progress(runtime.PullProgress{Message: "Pulling"})
	progress(runtime.PullProgress{Current: total / 2, Total: total, Message: "Downloading"})
	if remote.Err != nil {
		return runtime.Image{}, fault.New(fault.KindOf(remote.Err), "pull image %s", ref).WithReason(runtime.ReasonPull).WithCause(remote.Err)
	}
	progress(runtime.PullProgress{Current: total, Total: total, Message: "Pull complete"})
	r.e.mu.Lock()
	img := remote.Image
	img.References = append(slices.Clone(img.References), normal(ref))
	slices.Sort(img.References)
	img.References = slices.Compact(img.References)
	got := r.e.addImage(img, remote.Files).copy()
	r.e.mu.Unlock()
	if err := matchDigest(got, ref, digest); err != nil {
		return got, err
	}
	return got, done(nil)
}

// Commit makes an image of the container's files.
func (r *Runtime) Commit(ctx context.Context, kernel cluster.KernelID, o runtime.Commit) (runtime.Image, error) {
	if err := checkReference(o.Reference); err != nil || strings.Contains(o.Reference, "@") {
		return runtime.Image{}, fault.Invalidf("%q cannot name a new image", o.Reference).WithNext("write it like name:tag")
	}
	done, err := r.e.enter(ctx, Commit, kernel)
	if err != nil {
		return runtime.Image{}, err
	}
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	c, err := r.find(kernel)
	if err != nil {
		return runtime.Image{}, err
	}
	img := c.image.copy()
	img.ID, img.References, img.Digests, img.CreatedAt = "", []string{o.Reference}, nil, r.e.opt.Now()
	maps.Copy(img.Labels, o.Labels)
	if o.User.Session > 0 {
		img.Labels[cluster.LabelSessionFiles] = cluster.NoSessionFiles // files here have no owners
	}
	files := maps.Clone(c.image.files)
	if files == nil {
		files = map[string][]byte{}
	}
	for name, text := range c.files {
		files[name] = []byte(text)
		img.SizeBytes += int64(len(text))
	}
	if o.MaxBytes > 0 && img.SizeBytes > o.MaxBytes {
		return runtime.Image{}, fault.Exhaustedf("image %s would have %d bytes, %d are allowed", o.Reference, img.SizeBytes, o.MaxBytes).
			WithReason(runtime.ReasonImageSize)
	}
	return r.e.addImage(img, files).copy(), done(nil)
}

// RemoveImage takes an image away; see runtime.Runtime.
func (r *Runtime) RemoveImage(ctx context.Context, ref, id string) error {
	done, err := r.e.enter(ctx, Images, "")
	if err != nil {
		return err
	}
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	img := r.e.images[id]
	if img == nil {
		return done(nil)
	}
	ref = normal(ref)
	if slices.ContainsFunc(img.References, func(other string) bool { return other != ref }) {
		img.References = slices.DeleteFunc(slices.Clone(img.References), func(r string) bool { return r == ref })
		return done(nil)
	}
	for _, c := range r.e.containers {
		if c.image == img {
			return fault.Conflictf("image %s is used by kernel %s", ref, c.key.kernel).WithReason(runtime.ReasonImageUse)
		}
	}
	delete(r.e.images, id)
	return done(nil)
}
