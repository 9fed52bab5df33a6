package keeper

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// images finds and pulls images; several kernels that want the same one share one pull.
type images struct {
	rt    runtime.Runtime
	clock chassis.Clock
	awake *chassis.Awake
	// silence is how long a pull may go without progress.
	silence time.Duration
	pulled  func()
	group   *sync.WaitGroup // of the keeper, which waits for pulls too

	// cache keeps the small files of images across restarts; "" keeps none.
	cache string

	mu    sync.Mutex
	pulls map[string]*pull
	base  map[string]baseFiles // by image id
}

// baseFiles are the files of an image that overlays are made from, nil where it has none, and the first symbolic link on each path
// that was looked at, "" where there is none. It is never changed in place.
type baseFiles struct {
	passwd, group []byte
	links         map[string]string
}

// storedFiles is baseFiles on disk.
type storedFiles struct {
	Passwd, Group []byte
	Links         map[string]string
}

// pull is one pull of an image for all kernels that wait for it. It is cancelled when the last one stops waiting.
type pull struct {
	done     chan struct{}
	image    runtime.Image
	err      error
	cancel   context.CancelFunc
	waiting  int
	watchers map[int]func(runtime.PullProgress)
	serial   int
	last     time.Time
}

const (
	pullAttempts = 3
	maxPasswd    = 256 << 10
	maxBase      = 64
)

// need returns the image of a specification: the one that was resolved when the session was created, whatever its name means on this
// host now. pulling is called before a pull begins.
func (i *images) need(
	ctx context.Context, s *cluster.KernelSpec, pulling func(), progress func(runtime.PullProgress),
) (runtime.Image, error) {
	if img, found, err := i.exact(ctx, s); found || err != nil {
		return img, err
	}
	img, err := i.rt.Image(ctx, s.Image)
	switch {
	case err == nil && (s.ImageDigest == "" || isDigest(img, s.ImageDigest)):
		return img, nil
	case err != nil && !fault.Is(err, fault.NotFound):
		return img, fmt.Errorf("look for image %s: %w", s.Image, err)
	case s.RegistryType == "local" && err == nil:
		return img, fault.Conflictf("image %s on this agent is %s, the session is to run %s", s.Image, img.ID, s.ImageDigest).
			WithReason("image-digest").WithNext("load the same image on all agents' hosts, or import this one with: berth image import")
	case s.RegistryType == "local":
		return img, fault.NotFoundf("image %s is not on this agent and belongs to no registry", s.Image).
			WithReason("image-missing").WithNext("build or load it on the agent's host, for example with: make images")
	case s.AutoPull == cluster.PullNone && err != nil:
		return img, fault.NotFoundf("image %s is not on this agent and pulling is switched off", s.Image).
			WithReason("image-missing").WithNext("pull it on the agent's host or set auto_pull to digest")
	case s.AutoPull == cluster.PullNone:
		return img, fault.Conflictf("image %s on this agent is %s, expected %s, and pulling is switched off", s.Image, img.ID, s.ImageDigest).
			WithReason("image-digest").WithNext("pull it on the agent's host or set auto_pull to digest")
	case s.AutoPull == cluster.PullTag && err == nil:
		return img, fault.Conflictf("image %s on this agent is %s, expected %s, and tags that are there are not pulled again", s.Image, img.ID,
			s.ImageDigest).WithReason("image-digest").WithNext("pull it on the agent's host or set auto_pull to digest")
	}
	pulling()
	return i.pull(ctx, s.Image, s.ImageDigest, progress)
}

// exact finds the image by its content. One that was made of a session is taken only for its owner's sessions or under its own name:
// so the digest of somebody else's image in a manager's records opens nothing.
func (i *images) exact(ctx context.Context, s *cluster.KernelSpec) (img runtime.Image, found bool, err error) {
	if !isContentID(s.ImageDigest) {
		return img, false, nil
	}
	img, err = i.rt.Image(ctx, s.ImageDigest)
	switch {
	case fault.Is(err, fault.NotFound):
		return img, false, nil
	case err != nil:
		return img, false, fmt.Errorf("look for image %s: %w", s.Image, err)
	case img.ID != s.ImageDigest:
		return img, false, nil
	}
	owner := img.Labels[cluster.LabelCustomizedOwner]
	mine := owner == "" || owner == "user:"+s.Env["BACKENDAI_USER_UUID"] || slices.Contains(img.References, s.Image)
	return img, mine, nil
}

// isContentID reports whether a text can only name content, never a tag.
func isContentID(digest string) bool {
	sum, ok := strings.CutPrefix(digest, "sha256:")
	_, err := hex.DecodeString(sum)
	return ok && err == nil && len(sum) == 64
}

// isDigest reports whether an image has the expected content: its own id or a registry's digest.
func isDigest(img runtime.Image, digest string) bool {
	return img.ID == digest || slices.ContainsFunc(img.Digests, func(d string) bool { return d == digest || strings.HasSuffix(d, "@"+digest) })
}

func (i *images) pull(ctx context.Context, reference, digest string, progress func(runtime.PullProgress)) (runtime.Image, error) {
	key := reference + "@" + digest
	i.mu.Lock()
	p := i.pulls[key]
	if p == nil {
		pullCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		p = &pull{done: make(chan struct{}), cancel: cancel, watchers: map[int]func(runtime.PullProgress){}, last: i.awake.Now()}
		i.pulls[key] = p
		i.group.Go(func() { i.fetch(pullCtx, key, reference, digest, p) }) // ends with its last waiter at the latest
	}
	p.waiting++
	p.serial++
	me := p.serial
	p.watchers[me] = progress
	i.mu.Unlock()
	defer func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(p.watchers, me)
		if p.waiting--; p.waiting == 0 {
			p.cancel()
			if i.pulls[key] == p {
				delete(i.pulls, key)
			}
		}
	}()
	look := i.clock.NewTicker(max(i.silence/10, time.Second))
	defer look.Stop()
	for {
		select {
		case <-p.done:
			return p.image, p.err
		case <-ctx.Done():
			return runtime.Image{}, ctx.Err()
		case <-look.C():
			i.mu.Lock()
			silent := i.awake.Now().Sub(p.last)
			i.mu.Unlock()
			if silent > i.silence {
				return runtime.Image{}, fault.New(fault.Timeout, "pull of image %s made no progress for %s", reference, silent.Round(time.Second)).
					WithReason(string(cluster.ReasonPullTimeout)).WithNext("check the agent's way to the registry")
			}
		}
	}
}

func (i *images) fetch(ctx context.Context, key, reference, digest string, p *pull) {
	defer p.cancel()
	report := func(pp runtime.PullProgress) {
		i.mu.Lock()
		p.last = i.awake.Now()
		watchers := make([]func(runtime.PullProgress), 0, len(p.watchers))
		for _, w := range p.watchers {
			watchers = append(watchers, w)
		}
		i.mu.Unlock()
		for _, w := range watchers {
			w(pp)
		}
	}
	backoff := chassis.Backoff{Min: 500 * time.Millisecond, Max: 5 * time.Second}
	var img runtime.Image
	var err error
	for attempt := 1; ; attempt++ {
		img, err = i.rt.Pull(ctx, reference, digest, report)
		// An engine or a registry that does not answer may answer soon. "Not found", "denied" and a wrong digest would be the
		// result of another attempt, too.
		if err == nil || attempt == pullAttempts || !fault.Is(err, fault.Unavailable) {
			break
		}
		report(runtime.PullProgress{Message: fmt.Sprintf("attempt %d failed (%v), trying again", attempt, err)})
		if chassis.Wait(ctx, i.clock, backoff.Next()) != nil {
			break
		}
	}
	i.mu.Lock()
	p.image = img
	if err != nil {
		p.err = fmt.Errorf("pull image %s: %w", reference, err)
	}
	if i.pulls[key] == p {
		delete(i.pulls, key)
	}
	close(p.done)
	i.mu.Unlock()
	if err == nil && i.pulled != nil {
		i.pulled()
	}
}

// files returns the image's passwd and group files, read once per image.
func (i *images) files(ctx context.Context, img runtime.Image, reference string) (baseFiles, error) {
	i.mu.Lock()
	b, ok := i.base[img.ID]
	i.mu.Unlock()
	if ok && img.ID != "" {
		return b, nil
	}
	stored := i.cacheFile(img.ID)
	if stored != "" {
		var on storedFiles
		if data, err := os.ReadFile(stored); err == nil && json.Unmarshal(data, &on) == nil {
			b = baseFiles{on.Passwd, on.Group, on.Links}
			i.keep(img.ID, b)
			return b, nil
		}
	}
	read := func(path string) ([]byte, error) {
		data, err := i.rt.ReadImageFile(ctx, img.ID, path, maxPasswd) // what the name means may have changed
		if fault.Is(err, fault.NotFound) {
			return nil, nil
		}
		return data, err
	}
	var err error
	if b.passwd, err = read("/etc/passwd"); err != nil {
		return b, fmt.Errorf("read the users of image %s: %w", reference, err)
	}
	if b.group, err = read("/etc/group"); err != nil {
		return b, fmt.Errorf("read the groups of image %s: %w", reference, err)
	}
	i.store(img.ID, b)
	return b, nil
}

// store keeps an image's files in memory and on disk.
func (i *images) store(id string, b baseFiles) {
	i.keep(id, b)
	stored := i.cacheFile(id)
	if stored == "" {
		return
	}
	data, err := json.Marshal(storedFiles{b.passwd, b.group, b.links})
	if err == nil && os.MkdirAll(i.cache, 0o700) == nil && os.WriteFile(stored+".new", data, 0o600) == nil {
		_ = os.Rename(stored+".new", stored) // without it the files are read again after a restart
	}
}

// maxLinks bounds the paths that are remembered of one image.
const maxLinks = 256

// check refuses an image in which a mount point lies behind a symbolic link. Engines follow links of the image when they mount, so
// that whoever made the image would choose what is mounted over what: a folder, the home or a volume of the image over the runner.
func (i *images) check(ctx context.Context, img runtime.Image, s *cluster.KernelSpec) error {
	b, err := i.files(ctx, img, s.Image)
	if err != nil {
		return err
	}
	paths := host.MountPoints()
	for _, v := range img.Volumes {
		if v = path.Clean("/" + v); v == "/" || v == host.PrivateDir || strings.HasPrefix(v, host.PrivateDir+"/") {
			return fault.Invalidf("image %s declares the volume %s, which is reserved", s.Image, v).WithReason(cluster.ReasonTarget).
				WithNext("build the image without that volume")
		}
		paths = append(paths, v)
	}
	for _, m := range s.Mounts {
		if !strings.HasPrefix(m.Target, host.Home+"/") {
			paths = append(paths, m.Target)
		}
	}
	links := maps.Clone(b.links)
	if links == nil || len(links) > maxLinks {
		links = map[string]string{}
	}
	var missing []string
	for _, p := range paths {
		if _, known := links[p]; !known {
			missing = append(missing, p)
		}
	}
	reference := s.Image
	if img.ID != "" {
		reference = img.ID // what the container will be made of
	}
	if len(missing) > 0 {
		found, err := i.rt.LinksInImage(ctx, reference, missing)
		if err != nil {
			return fmt.Errorf("look for links in image %s: %w", s.Image, err)
		}
		maps.Copy(links, found)
		b.links = links
		i.store(img.ID, b)
	}
	for _, p := range paths {
		if l := links[p]; l != "" {
			return fault.Invalidf("%s is a mount point, and %s is a symbolic link in image %s", p, l, s.Image).WithReason(cluster.ReasonTarget).
				WithNext("choose another target, or build the image with a directory in place of the link")
		}
	}
	return nil
}

func (i *images) keep(id string, b baseFiles) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.base) >= maxBase {
		clear(i.base)
	}
	i.base[id] = b
}

// cacheFile is where an image's files are kept; "" for an id that is no content hash.
func (i *images) cacheFile(id string) string {
	if !isContentID(id) || i.cache == "" {
		return ""
	}
	return filepath.Join(i.cache, strings.TrimPrefix(id, "sha256:")+".json")
}

// prune drops kept files of images that are gone.
func (i *images) prune(present []runtime.Image) {
	entries, err := os.ReadDir(i.cache)
	if err != nil || i.cache == "" {
		return
	}
	have := map[string]bool{}
	for _, img := range present {
		have[strings.TrimPrefix(img.ID, "sha256:")+".json"] = true
	}
	for _, e := range entries {
		if !have[e.Name()] {
			_ = os.Remove(filepath.Join(i.cache, e.Name())) // it is tried again at the next sweep
		}
	}
}
