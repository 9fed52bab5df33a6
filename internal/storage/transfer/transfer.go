// Package transfer is the client-facing API of the storage proxy: uploads by tus 1.0, downloads with ranges and
// archives of folders, all admitted by signed tokens that the manager-facing API hands out.
//
// Nothing about a transfer is kept in memory that another proxy on the same volume could not find again: a token
// says what is allowed, and the staged file on the volume is the offset, the lease and the session.
package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
	wire "berth.dev/berth/internal/wire/storage"
)

// Options make a Server. Zero values take the defaults that are named; Key and Volumes are required.
type Options struct {
	// Key signs tokens: storage.Key(secret, proxy, storage.ClientKey).
	Key string
	// Version is what GET / says.
	Version string
	// Volumes finds a volume that can be used now, VolumeNames lists all of them.
	Volumes     func(name string) (volume.Volume, bool)
	VolumeNames func() []string
	// Rights is the copy of epochs that tokens are checked against; nil checks none, for tests of other things.
	Rights *Rights
	// MaxUploadSize bounds one file in bytes; default 100 GiB.
	MaxUploadSize int64
	// UploadLife and DownloadLife are how long tokens are good; default 24 h and 1 h. Tokens for files get more by
	// their size, a second for each MiB, so that slow lines can resume.
	UploadLife, DownloadLife time.Duration
	// UploadExpiry is how long an unfinished upload that nobody writes is kept, and a finished one remembered;
	// default 24 h.
	UploadExpiry time.Duration
	// MaxTransfers and MaxPerFolder bound the transfers at one time in this process; default 512 and 64.
	MaxTransfers, MaxPerFolder int
	// QueueWait is how long a transfer waits for its turn before 503, LockWait how long for another writer of the
	// same upload before 423; default 5 s and 10 s.
	QueueWait, LockWait time.Duration
	// QuietWriter is how long no byte may come from a writer before another request of the same upload ends it; default 3 s.
	QuietWriter time.Duration
	// IdleTimeout ends transfers in which no byte moves; default 30 s.
	IdleTimeout time.Duration
	// AllowedOrigins are the origins of browsers that may use the API; none means all, as tokens alone authorize.
	AllowedOrigins []string
	// HSTS tells browsers that come by TLS to come by TLS alone for a year.
	HSTS bool
	// Trusted are the reverse proxies in front; they say which address a client comes from.
	Trusted clientaddr.Trusted
	Clock   chassis.Clock // default the machine's
	Random  io.Reader     // default crypto/rand
	Log     *slog.Logger  // default none
}

func (o *Options) defaults() {
	set(&o.MaxUploadSize, 100<<30)
	set(&o.UploadLife, 24*time.Hour)
	set(&o.DownloadLife, time.Hour)
	set(&o.UploadExpiry, 24*time.Hour)
	set(&o.MaxTransfers, 512)
	set(&o.MaxPerFolder, 64)
	set(&o.QueueWait, 5*time.Second)
	set(&o.LockWait, 10*time.Second)
	set(&o.QuietWriter, 3*time.Second)
	set(&o.IdleTimeout, 30*time.Second)
	if o.Clock == nil {
		o.Clock = chassis.RealClock()
	}
	if o.Random == nil {
		o.Random = rand.Reader
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.VolumeNames == nil {
		o.VolumeNames = func() []string { return nil }
	}
}

func set[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Server serves the client-facing API and makes its tokens. It is safe for concurrent use.
type Server struct {
	o       Options
	tokens  tokens
	limit   *limiter
	quick   *limiter // of questions, which move no bytes
	drains  chan struct{}
	writers writers
}

// New makes a server. It needs no closing; Run does its background work.
func New(o Options) *Server {
	o.defaults()
	s := &Server{o: o, limit: newLimiter(o.MaxTransfers), quick: newLimiter(maxQuick), drains: make(chan struct{}, maxDrains)}
	s.tokens = tokens{key: []byte(o.Key), now: o.Clock.Now, random: o.Random}
	return s
}

// UploadRequest asks for a token that writes one file of exactly Size bytes.
type UploadRequest struct {
	Volume string
	Folder cluster.FolderRef
	Path   string // relative, as the client wrote it
	Size   int64
	// Resume names an upload of the folder that goes on; "" begins one.
	Resume string
	// Clients are the addresses and prefixes that the token may be used from; none means all.
	Clients []string
	Rights  *wire.TokenRights // nil of managers that know none
}

// DownloadRequest asks for a token that reads one file, or a directory as an archive.
type DownloadRequest struct {
	Volume  string
	Folder  cluster.FolderRef
	Path    string
	Archive bool
	Clients []string // see UploadRequest
	Rights  *wire.TokenRights
}

// ArchiveRequest asks for a token that reads several paths as one archive. Filename may be "".
type ArchiveRequest struct {
	Volume   string
	Folder   cluster.FolderRef
	Paths    []string
	Filename string
	Clients  []string // see UploadRequest
	Rights   *wire.TokenRights
}

// Wait returns once no transfer runs, or with the error of ctx. An HTTP server that was closed does not wait for
// those whose connections it cut, and they still make durable what has come: close volumes after this.
func (s *Server) Wait(ctx context.Context) error {
	if err := s.limit.empty(ctx); err != nil {
		return err
	}
	return s.quick.empty(ctx)
}

// Run collects unfinished uploads that nobody continues until ctx ends; it returns nil then.
func (s *Server) Run(ctx context.Context) error {
	tick := s.o.Clock.NewTicker(min(10*time.Minute, s.o.UploadExpiry/2))
	defer tick.Stop()
	for {
		if _, err := s.ExpireUploads(ctx); err != nil && ctx.Err() == nil {
			s.o.Log.Warn("stale uploads could not all be removed", "error", err)
		}
		select {
		case <-tick.C():
		case <-ctx.Done():
			return nil
		}
	}
}

// ExpireUploads removes uploads that were last written longer than UploadExpiry ago, from all volumes.
// A volume that fails does not keep the others from being collected.
func (s *Server) ExpireUploads(ctx context.Context) (removed int, err error) {
	before := s.o.Clock.Now().Add(-s.o.UploadExpiry)
	var errs []error
	for _, name := range s.o.VolumeNames() {
		v, ok := s.o.Volumes(name)
		if !ok {
			continue // it is away; its uploads wait until it is back
		}
		n, err := v.ExpireStaged(ctx, before)
		removed += n
		if err != nil {
			errs = append(errs, fmt.Errorf("expire uploads of volume %s: %w", name, err))
		}
	}
	return removed, errors.Join(errs...)
}

// volume finds the volume of a request or a token.
func (s *Server) volume(name string) (volume.Volume, error) {
	v, ok := s.o.Volumes(name)
	if !ok {
		return nil, fault.Unavailablef("volume %q cannot be used on this storage proxy", name).
			WithReason("volume-unavailable").WithNext("ask your administrator whether the volume is mounted there")
	}
	return v, nil
}
