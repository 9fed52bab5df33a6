package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/fault"
)

// failure turns an engine's error into a fault. verb says what was tried, on what.
func (r *Runtime) failure(err error, verb string, args ...any) error {
	what := fmt.Sprintf(verb, args...)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, os.ErrPermission):
		return fault.Unavailablef("%s: the container engine's socket %s is closed to this user", what, r.cfg.Host).
			WithReason(runtime.ReasonEngine).WithCause(r.aside(what, err)).
			WithNext("run as root or add the user to the group docker: usermod -aG docker USER")
	case errors.Is(err, context.DeadlineExceeded):
		return fault.Unavailablef("%s: the container engine at %s did not answer in time", what, r.cfg.Host).
			WithReason(runtime.ReasonEngine).WithCause(r.aside(what, err)).
			WithNext("look at the engine: docker -H %s info", r.cfg.Host)
	}
	msg := strings.ToLower(err.Error())
	kind := fault.Internal
	switch {
	case client.IsErrConnectionFailed(err):
		return r.unanswered(what, err)
	// The colon is the engine's: what owners choose, such as targets of folders, is in messages too, and has none.
	case strings.Contains(msg, ": no space left on device"), strings.Contains(msg, ": disk quota exceeded"):
		return fault.Exhaustedf("%s: the disk of the container engine is full", what).WithReason(runtime.ReasonDisk).
			WithCause(r.aside(what, err)).WithNext("free space below the engine's data directory: docker system df")
	case strings.Contains(msg, "cannot allocate memory"), strings.Contains(msg, "resource temporarily unavailable"):
		kind = fault.Exhausted
	case strings.Contains(msg, "setting rlimit"), strings.Contains(msg, "executable file not found"),
		strings.Contains(msg, "no such file or directory") && strings.Contains(msg, "exec"),
		strings.Contains(msg, "not a directory") && strings.Contains(msg, "mount"),
		strings.Contains(msg, "exec format error"), strings.Contains(msg, "permission denied") && strings.Contains(msg, "exec"):
		// The engine calls these internal errors, but the same spec can never do better.
		kind = fault.Invalid
	case cerrdefs.IsNotFound(err):
		kind = fault.NotFound
	case cerrdefs.IsConflict(err), cerrdefs.IsNotModified(err), cerrdefs.IsAlreadyExists(err):
		kind = fault.Conflict
	case cerrdefs.IsInvalidArgument(err), cerrdefs.IsNotImplemented(err), cerrdefs.IsFailedPrecondition(err):
		kind = fault.Invalid
	case cerrdefs.IsPermissionDenied(err), cerrdefs.IsUnauthorized(err):
		kind = fault.Denied
	case cerrdefs.IsUnavailable(err), !answered(err):
		return r.unanswered(what, err)
	}
	return r.refused(kind, what, err)
}

func (r *Runtime) unanswered(what string, err error) error {
	return fault.Unavailablef("%s: the container engine does not answer at %s", what, r.cfg.Host).
		WithReason(runtime.ReasonEngine).WithCause(r.aside(what, err)).
		WithNext("start it (systemctl start docker; from a source tree: scripts/engine.sh ensure), then look at its log")
}

// answered reports whether the engine itself said err, as opposed to the connection breaking.
func answered(err error) bool {
	if client.IsErrConnectionFailed(err) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.ENOENT) {
		return false
	}
	return cerrdefs.IsInternal(err) || cerrdefs.IsUnknown(err) || cerrdefs.IsInvalidArgument(err) ||
		strings.Contains(err.Error(), "Error response from daemon")
}
