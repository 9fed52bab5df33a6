package frame

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/follow"
	"berth.dev/berth/api/profile"
)

// Exit codes of every verb but the programs that run and exec pass through.
const (
	ExitOK          = 0
	ExitFailure     = 1
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitDenied      = 4
	ExitUnavailable = 5
	// ExitInterrupted is what shells use for Ctrl-C.
	ExitInterrupted = 130
)

// ExitError passes the exit code of a program through; nothing is printed for it.
type ExitError struct{ Code int }

func (e *ExitError) Error() string { return fmt.Sprintf("the program exited with code %d", e.Code) }

// ExitWith turns an exit code into an error, 0 into none.
func ExitWith(code int) error {
	if code == 0 {
		return nil
	}
	return &ExitError{Code: code}
}

// usageError is a wrong use of the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// Usage marks an error as wrong use of the command line.
func Usage(err error) error { return &usageError{err} }

// hinted is an error with the next command to try.
type hinted struct {
	err  error
	next string
}

func (e *hinted) Error() string { return e.err.Error() }
func (e *hinted) Unwrap() error { return e.err }

// Hint adds advice to an error; advice that is nearer to the cause wins.
func Hint(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if len(args) > 0 {
		format = fmt.Sprintf(format, args...)
	}
	return &hinted{err: err, next: format}
}

// Errors of our own that have an exit code.
var (
	ErrInterrupted = errors.New("interrupted")
	ErrTimeout     = errors.New("gave up waiting")
)

// Explain gives the next step and the exit code of errors that this package does not
// know, such as those of server verbs. It answers "" and 0 for what it does not know either.
type Explain func(err error) (next string, code int)

// Execute runs the command line and returns the exit code of the process.
func Execute(ctx context.Context, root *cobra.Command, explain ...Explain) int {
	root.SilenceErrors, root.SilenceUsage = true, true
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitOK
	}
	PrintError(root.ErrOrStderr(), err, explain...)
	return ExitCode(err, explain...)
}

// PrintError says what went wrong and what to do next.
func PrintError(w io.Writer, err error, explain ...Explain) {
	var exit *ExitError
	if err == nil || errors.As(err, &exit) {
		return
	}
	fmt.Fprintf(w, "berth: %s\n", strings.TrimSpace(err.Error()))
	next := Next(err)
	for i := 0; next == "" && i < len(explain); i++ {
		next, _ = explain[i](err)
	}
	if next != "" {
		fmt.Fprintf(w, "  next: %s\n", next)
	}
}

// ExitCode maps an error to the exit code of the process.
func ExitCode(err error, explain ...Explain) int {
	var exit *ExitError
	var wrong *usageError
	var problem *api.Error
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &exit):
		return exit.Code
	case errors.As(err, &wrong) || isUsageText(err.Error()):
		return ExitUsage
	case errors.Is(err, ErrInterrupted) || errors.Is(err, context.Canceled):
		return ExitInterrupted
	case api.IsNotFound(err):
		return ExitNotFound
	case api.IsDenied(err):
		return ExitDenied
	case follow.Unreachable(err) || errors.Is(err, ErrTimeout) || errors.Is(err, context.DeadlineExceeded):
		return ExitUnavailable
	case errors.As(err, &problem) && unavailableStatus(problem.Status):
		return ExitUnavailable
	}
	for _, e := range explain {
		if _, code := e(err); code != 0 {
			return code
		}
	}
	return ExitFailure
}

// Next returns the next command to try, or "".
func Next(err error) string {
	var problem *api.Error
	if errors.As(err, &problem) && problem.Next != "" {
		return problem.Next
	}
	// The innermost hint is the nearest to the cause.
	next := ""
	for e := err; e != nil; e = errors.Unwrap(e) {
		if h, ok := e.(*hinted); ok { //nolint:errorlint // the loop unwraps
			next = h.next
		}
	}
	if next != "" {
		return next
	}
	switch {
	case errors.Is(err, api.ErrNotConfigured):
		return "berth up (starts a cluster here), berth login ADDRESS (uses another one), or set " +
			"BACKEND_ENDPOINT, BACKEND_ACCESS_KEY and BACKEND_SECRET_KEY"
	case errors.Is(err, profile.ErrNone):
		return "berth profile list"
	case follow.Unreachable(err):
		return "berth status (is the cluster up?), berth up (starts one here)"
	case problem != nil:
		return problemNext(problem)
	case errors.Is(err, context.DeadlineExceeded):
		return "berth status"
	case isUsageText(err.Error()):
		return "berth --help"
	}
	return ""
}

func problemNext(p *api.Error) string {
	switch {
	case p.Slug() == api.SlugTooManySessions:
		return "berth session list, then use the id"
	case p.Slug() == api.SlugInvalidAuth:
		return "check the clocks of this machine and of the manager, then berth whoami"
	case p.Slug() == api.SlugSessionExists:
		return "choose another --name, or berth session rm the old session"
	case p.Status == http.StatusUnauthorized:
		return "check BACKEND_ACCESS_KEY and BACKEND_SECRET_KEY, then berth whoami"
	case p.Status == http.StatusForbidden:
		return "berth whoami (shows what this keypair may do)"
	case p.Status == http.StatusNotFound && strings.Contains(p.Op, "/folders"):
		return "berth folder list"
	case p.Slug() == api.SlugQuotaExceeded || p.Status == http.StatusInsufficientStorage:
		return "berth folder quota NAME shows the limit; berth folder du NAME what takes the room"
	case p.Status == http.StatusNotFound:
		return "berth session list, berth image list or berth agent list"
	case p.Status == http.StatusTooManyRequests:
		return "wait a moment and try again"
	case unavailableStatus(p.Status):
		return "berth status, then try again"
	case p.Status >= 500:
		return "berth status and the log of the manager"
	}
	return ""
}

func unavailableStatus(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// isUsageText recognises the complaints of cobra, which have no type.
func isUsageText(text string) bool {
	for _, prefix := range []string{
		"unknown command", "unknown flag", "unknown shorthand flag", "flag needs an argument", "invalid argument",
		"required flag", "if any flags in the group", "accepts ", "requires at least",
	} {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}
