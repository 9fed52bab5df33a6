package transfer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"

	"berth.dev/berth/api"
)

// maxFailures is how many failures a report describes.
const maxFailures = 100

// Failure is a path that could not be moved.
type Failure struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Report sums up what became of a tree.
type Report struct {
	// Files and Bytes were moved; Unchanged files were there already; LeftOut are links and special files.
	Files     int64 `json:"files"`
	Bytes     int64 `json:"bytes"`
	Unchanged int64 `json:"unchanged"`
	LeftOut   int64 `json:"left_out"`
	// Failed counts paths that could not be moved; Failures describes the first of them.
	Failed   int64     `json:"failed"`
	Failures []Failure `json:"failures,omitempty"`
}

// IncompleteError says that some paths of a tree could not be moved; the others were.
type IncompleteError struct{ Report Report }

func (e *IncompleteError) Error() string {
	first := e.Report.Failures[0]
	if e.Report.Failed == 1 {
		return fmt.Sprintf("%s could not be copied: %s", first.Path, first.Reason)
	}
	return fmt.Sprintf("%d paths could not be copied; the first is %s: %s", e.Report.Failed, first.Path, first.Reason)
}

// tree moves many files by a few workers. The walk that finds them waits for the workers, so that memory is bounded
// by what one directory holds.
type tree struct {
	o      Options
	mu     sync.Mutex
	report Report
}

// moveFile moves one file; it returns its size and whether it was there already.
type moveFile func(ctx context.Context, o Options) (size int64, there bool, err error)

type treeJob struct {
	path string
	size int64
	move moveFile
}

func newTree(o Options) *tree {
	t := &tree{o: o}
	seen := o.Seen
	t.o.Seen = nil
	if seen != nil {
		var one sync.Mutex
		t.o.Seen = func(e Event) {
			one.Lock()
			defer one.Unlock()
			seen(e)
		}
	}
	return t
}

// run walks and moves until everything is done or something fails that concerns all files.
func (t *tree) run(ctx context.Context, walk func(ctx context.Context, add func(treeJob) error) error) (Report, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	jobs := make(chan treeJob)
	var workers sync.WaitGroup
	for range t.o.parallel() {
		workers.Go(func() {
			for j := range jobs {
				if err := t.do(ctx, j); err != nil {
					cancel(err)
				}
			}
		})
	}
	err := walk(ctx, func(j treeJob) error {
		t.o.tell(Found, j.path, j.size, "")
		select {
		case jobs <- j:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	if err != nil {
		cancel(err)
	}
	close(jobs)
	workers.Wait()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil && t.report.Failed > 0 {
		err = &IncompleteError{Report: t.report}
	}
	return t.report, err
}

// do moves one file; it returns only errors that concern all files.
func (t *tree) do(ctx context.Context, j treeJob) error {
	if ctx.Err() != nil {
		return nil
	}
	size, there, err := j.move(ctx, t.o)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil
	case err != nil && concernsAll(err):
		return fmt.Errorf("%s: %w", j.path, err)
	case err != nil:
		t.fail(j.path, err)
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if there {
		t.report.Unchanged++
		t.o.tell(Skipped, j.path, size, "")
		return nil
	}
	t.report.Files++
	t.report.Bytes += size
	t.o.tell(Done, j.path, size, "")
	return nil
}

func (t *tree) fail(path string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.Failed++
	if len(t.report.Failures) < maxFailures {
		t.report.Failures = append(t.report.Failures, Failure{path, err.Error()})
	}
	t.o.tell(Failed, path, 0, err.Error())
}

// leaveOut tells of what is no file or directory.
func (t *tree) leaveOut(path, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.LeftOut++
	t.o.tell(Skipped, path, 0, reason)
}

// concernsAll reports whether the other files of a tree would fail as well.
func concernsAll(err error) bool {
	var here *LocalError
	var refused *api.Error
	switch {
	case errors.As(err, &here):
		return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
	case errors.Is(err, ErrChanged), errors.Is(err, ErrDiffers):
		return false
	case errors.As(err, &refused):
		// A path of an upload cannot be missing, so that it is the folder.
		gone := refused.Status == http.StatusNotFound && strings.HasSuffix(refused.Op, "/request-upload")
		switch refused.Status {
		case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout: // after all tries
			return true
		}
		return gone || api.IsDenied(err) || refused.Status == http.StatusInsufficientStorage ||
			refused.Status == http.StatusTooManyRequests ||
			api.HasSlug(err, api.SlugQuotaExceeded)
	}
	return true // The network, after all tries.
}

// Stat is StatPath of package api, tried again like transfers.
func Stat(ctx context.Context, client *api.Client, at api.FolderPath, o Options) (e api.FolderEntry, err error) {
	r := retrier{o: o}
	err = r.try(ctx, func() error {
		e, err = client.StatPath(ctx, at)
		return err
	})
	return e, err
}

// maxCompared bounds how many entries of a directory are kept to find files that are there already; files beyond
// it are moved again.
const maxCompared = 200_000

// entriesOf reads a directory into a map. A directory that is not there has no entries; there is false then.
func (c mover) entriesOf(ctx context.Context, at api.FolderPath, o Options) (entries map[string]api.FolderEntry, there bool, err error) {
	r := retrier{o: o}
	err = r.try(ctx, func() error {
		entries, there = map[string]api.FolderEntry{}, true
		for e, err := range c.FolderEntries(ctx, at) {
			switch {
			case errors.Is(err, api.ErrTruncated), len(entries) == maxCompared:
				return nil
			case noDirectory(err) && !at.IsRoot():
				there = false
				return nil
			case err != nil:
				return err
			}
			entries[e.Name] = e
		}
		return nil
	})
	return entries, there, err
}

// noDirectory reports whether a listing was refused since nothing of that name can be listed.
func noDirectory(err error) bool {
	var refused *api.Error
	return errors.As(err, &refused) && !api.IsDenied(err) && refused.Status < 500 && refused.Status != http.StatusTooManyRequests
}
