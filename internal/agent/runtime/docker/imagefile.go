package docker

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"sync"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/fault"
)

// wanted are the files that a kernel's preparation asks for; one probe reads them all.
var wanted = []string{"/etc/passwd", "/etc/group"}

// watched are the mount points that every kernel has: whether links lie on them is looked at by the same probe.
var watched = []string{"/.berth", "/home/work", "/home/config", "/etc/passwd", "/etc/group"}

const (
	// cachedFile is the largest file that is kept in memory.
	cachedFile = 256 << 10
	// cachedFiles bounds how many are.
	cachedFiles = 1024
	// linkHops bounds the symbolic links that are followed.
	linkHops = 8
)

// fileCache keeps small files of images. What an image id contains never changes.
type fileCache struct {
	mu sync.Mutex
	// byImage: image id -> path -> content; a nil content says that there is no such file.
	byImage map[string]map[string][]byte
	count   int
	// links: image id -> path -> what is there.
	links map[string]map[string]entry
	// probes holds one probe per image at a time.
	probes map[string]*sync.Mutex
}

func (c *fileCache) get(image, p string) (content []byte, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	content, known = c.byImage[image][p]
	return content, known
}

func (c *fileCache) put(image, p string, content []byte) {
	if len(content) > cachedFile {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byImage == nil || c.count >= cachedFiles {
		c.byImage, c.count = map[string]map[string][]byte{}, 0
	}
	if c.byImage[image] == nil {
		c.byImage[image] = map[string][]byte{}
	}
	c.byImage[image][p] = content
	c.count++
}

// entry is what an image has at a path.
type entry int

const (
	unknown entry = iota
	nothing
	directory
	link
	file // of any other kind
)

func (c *fileCache) entry(image, p string) entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.links[image][p]
}

func (c *fileCache) setEntry(image, p string, e entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.links == nil || len(c.links[image]) >= cachedFiles {
		c.links = map[string]map[string]entry{}
	}
	if c.links[image] == nil {
		c.links[image] = map[string]entry{}
	}
	c.links[image][p] = e
}

func (c *fileCache) keep(images map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.links {
		if !images[id] {
			delete(c.links, id)
		}
	}
	for id, files := range c.byImage {
		if !images[id] {
			c.count -= len(files)
			delete(c.byImage, id)
		}
	}
	for id := range c.probes {
		if !images[id] {
			delete(c.probes, id)
		}
	}
}

func (c *fileCache) probe(image string) *sync.Mutex {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.probes == nil {
		c.probes = map[string]*sync.Mutex{}
	}
	if c.probes[image] == nil {
		c.probes[image] = &sync.Mutex{}
	}
	return c.probes[image]
}

// ReadImageFile returns one regular file of an image. The first call for an image creates a
// container that is never started, copies from it and removes it; later ones come from memory.
func (r *Runtime) ReadImageFile(ctx context.Context, ref, file string, limit int64) ([]byte, error) {
	clean := path.Clean("/" + file)
	img, err := r.Image(ctx, ref)
	if err != nil {
		return nil, err
	}
	one := r.files.probe(img.ID)
	one.Lock()
	defer one.Unlock()
	content, known := r.files.get(img.ID, clean)
	if !known {
		content, err = r.probeImage(ctx, img.ID, clean, limit)
		if err != nil {
			return nil, err
		}
	}
	switch {
	case content == nil:
		return nil, fault.NotFoundf("image %s has no file %s", ref, clean)
	case int64(len(content)) > limit:
		return nil, tooLarge(ref, clean, limit)
	}
	return content, nil
}

func tooLarge(ref, file string, limit int64) error {
	return fault.Exhaustedf("file %s of image %s is larger than %d bytes", file, ref, limit)
}

// probed calls use with a container of the image that is never started, and removes it afterwards.
func (r *Runtime) probed(ctx context.Context, image string, use func(ctx context.Context, container string) error) error {
	ctx, cancel := context.WithTimeout(ctx, createCall)
	defer cancel()
	res, err := r.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{
			Image: image, Entrypoint: []string{"/never-started"},
			Labels: map[string]string{
				labelProbe: r.cfg.Cluster, labelProbeAgent: string(r.cfg.Agent), labelProbeBy: r.token,
			},
			NetworkDisabled: true,
		},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	if err != nil {
		return r.failure(err, "open the files of image %s", image)
	}
	defer func() {
		// Also when the caller gave up: a probe must not be left behind.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeCall)
		defer cancel()
		if err := r.remove(ctx, res.ID); err != nil {
			r.log.Warn("could not remove the container that read files of an image", "container", res.ID, "image", image, "error", err)
		}
	}()
	return use(ctx, res.ID)
}

// probeImage reads file, and the usually wanted ones on the way. A nil content means absent.
func (r *Runtime) probeImage(ctx context.Context, image, file string, limit int64) (content []byte, err error) {
	err = r.probed(ctx, image, func(ctx context.Context, id string) error {
		if content, err = r.copyOut(ctx, id, image, file, limit); err != nil {
			return err
		}
		r.files.put(image, file, content)
		for _, w := range wanted {
			if _, known := r.files.get(image, w); known {
				continue
			}
			// What fails here is asked for again, and reported, when it is needed.
			if c, err := r.copyOut(ctx, id, image, w, cachedFile); err == nil {
				r.files.put(image, w, c)
			}
		}
		_, _ = linksOn(watched, func(step string) (entry, error) { return r.entryOf(ctx, id, image, step) }) // it is asked for again, too
		return nil
	})
	return content, err
}

// LinksInImage finds symbolic links on paths of an image; see runtime.Runtime. What was found once comes from memory.
func (r *Runtime) LinksInImage(ctx context.Context, ref string, paths []string) (map[string]string, error) {
	img, err := r.Image(ctx, ref)
	if err != nil {
		return nil, err
	}
	one := r.files.probe(img.ID)
	one.Lock()
	defer one.Unlock()
	found, err := linksOn(paths, func(step string) (entry, error) {
		if e := r.files.entry(img.ID, step); e != unknown {
			return e, nil
		}
		return unknown, errUnknown
	})
	if !errors.Is(err, errUnknown) {
		return found, err
	}
	err = r.probed(ctx, img.ID, func(ctx context.Context, id string) error {
		found, err = linksOn(paths, func(step string) (entry, error) { return r.entryOf(ctx, id, img.ID, step) })
		return err
	})
	return found, err
}

// linksOn finds the first symbolic link on each path; "" where there is none.
func linksOn(paths []string, look func(step string) (entry, error)) (map[string]string, error) {
	out := map[string]string{}
	for _, p := range paths {
		out[p] = ""
		for _, step := range runtime.Steps(p) {
			e, err := look(step)
			if err != nil {
				return nil, err
			}
			if e == link {
				out[p] = step
			}
			if e != directory {
				break // nothing lies below
			}
		}
	}
	return out, nil
}

// errUnknown says that the cache does not know all that is asked.
var errUnknown = errors.New("not looked at yet")

// entryOf looks at one path of a container that was never started.
func (r *Runtime) entryOf(ctx context.Context, id, image, p string) (entry, error) {
	if e := r.files.entry(image, p); e != unknown {
		return e, nil
	}
	res, err := r.api.ContainerStatPath(ctx, id, client.ContainerStatPathOptions{Path: p})
	e := file
	switch {
	case err != nil && cerrdefs.IsNotFound(err):
		e = nothing
	case err != nil:
		return unknown, r.failure(err, "look at %s of image %s", p, image)
	case res.Stat.Mode&os.ModeSymlink != 0:
		e = link
	case res.Stat.Mode.IsDir():
		e = directory
	}
	r.files.setEntry(image, p, e)
	return e, nil
}

// sweepProbes removes, once, what an agent left behind that was killed while it read an image.
func (r *Runtime) sweepProbes(ctx context.Context) {
	if r.swept.Load() {
		return
	}
	filters := client.Filters{}.Add("label", labelProbe+"="+r.cfg.Cluster, labelProbeAgent+"="+string(r.cfg.Agent))
	left, err := r.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	if err != nil {
		return // the caller's own question will say what is wrong; the next one tries again
	}
	for _, c := range left.Items {
		if c.Labels[labelProbeBy] == r.token {
			continue
		}
		if err := r.remove(ctx, c.ID); err != nil {
			r.log.Warn("could not remove a leftover container that read files of an image", "container", c.ID, "error", err)
			return
		}
	}
	r.swept.Store(true)
}

// copyOut reads one file of a container, following links inside it.
func (r *Runtime) copyOut(ctx context.Context, id, image, file string, limit int64) ([]byte, error) {
	for range linkHops {
		content, link, err := r.copyOnce(ctx, id, image, file, limit)
		if err != nil || link == "" {
			return content, err
		}
		if !strings.HasPrefix(link, "/") {
			link = path.Join(path.Dir(file), link)
		}
		file = path.Clean(link)
	}
	return nil, nil // a loop of links leads to no file
}

func (r *Runtime) copyOnce(ctx context.Context, id, image, file string, limit int64) (content []byte, link string, err error) {
	res, err := r.api.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: file})
	if err != nil {
		// Engines call a path below a regular file an internal error.
		if cerrdefs.IsNotFound(err) || strings.Contains(err.Error(), "not a directory") {
			return nil, "", nil
		}
		return nil, "", r.failure(err, "read %s of image %s", file, image)
	}
	defer res.Content.Close()
	if res.Stat.Mode.IsDir() {
		return nil, "", nil
	}
	t := tar.NewReader(res.Content)
	h, err := t.Next()
	if errors.Is(err, io.EOF) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", r.failure(err, "read %s of image %s", file, image)
	}
	switch {
	case h.Typeflag == tar.TypeSymlink:
		return nil, h.Linkname, nil
	case h.Typeflag != tar.TypeReg:
		return nil, "", nil
	case h.Size > limit:
		return nil, "", tooLarge(image, file, limit)
	}
	content, err = io.ReadAll(io.LimitReader(t, limit))
	if err != nil {
		return nil, "", r.failure(err, "read %s of image %s", file, image)
	}
	if content == nil {
		content = []byte{}
	}
	return content, "", nil
}
