package frame

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

// maxNamed bounds how many things an error names.
const maxNamed = 10

// Names joins what exists for an error that missed one of them.
func Names(list []string) string {
	list = slices.Compact(slices.Sorted(slices.Values(list)))
	switch n := len(list) - maxNamed; {
	case len(list) == 0:
		return "none"
	case n > 0:
		return strings.Join(list[:maxNamed], ", ") + fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(list, ", ")
}

// RunningSession describes a session that has to run. Its errors name the sessions that do, or say what has become of it.
func RunningSession(ctx context.Context, c *api.Client, session string) (api.SessionInfo, error) {
	info, err := c.SessionInfo(ctx, session)
	if api.IsNotFound(err) {
		return info, missingSession(ctx, c, session, err)
	}
	if err != nil {
		return info, err
	}
	if info.ID == "" {
		info.ID = session
	}
	if info.Name == "" {
		info.Name = session
	}
	switch {
	case info.Status == api.StatusRunning:
		return info, nil
	case api.Ended(info.Status):
		return info, Hint(
			fmt.Errorf("session %s has ended: it is %s", info.Name, info.Status),
			"berth session list shows those that run; berth run or berth session create starts one",
		)
	}
	return info, Hint(fmt.Errorf("session %s does not run: it is %s", info.Name, info.Status), "berth session wait %s", info.Name)
}

func missingSession(ctx context.Context, c *api.Client, session string, err error) error {
	list, lookErr := c.Sessions(ctx, api.SessionFilter{Limit: 100})
	if lookErr != nil {
		return Hint(err, "berth session list")
	}
	names := []string{}
	for _, s := range list {
		if s.Status == api.StatusRunning && s.Name != "" {
			names = append(names, s.Name)
		}
	}
	// A session that ended leaves its name to nobody.
	if ended, e := c.Sessions(ctx, api.SessionFilter{Statuses: api.EndedStatuses, Name: session, Limit: 1}); e == nil && len(ended) > 0 {
		return Hint(
			fmt.Errorf("session %s has ended: it is %s; running: %s%w", session, ended[0].Status, Names(names), silent(err)),
			"berth session info %s, or berth session create", ended[0].ID,
		)
	}
	return Hint(fmt.Errorf("there is no session %s; running: %s%w", session, Names(names), silent(err)), "berth session list")
}

// quiet keeps what an error is, for exit codes, and drops its words.
type quiet struct{ err error }

func (quiet) Error() string   { return "" }
func (q quiet) Unwrap() error { return q.err }

func silent(err error) error {
	var problem *api.Error
	if errors.As(err, &problem) {
		bare := *problem
		bare.Next = ""
		return quiet{&bare}
	}
	return quiet{err}
}

// completionTimeout bounds how long a shell waits for names.
const completionTimeout = 3 * time.Second

// CompleteSessions completes the names of running sessions as a verb's first operand; next, which may be nil, lists what the
// later ones can be.
func (a *Frame) CompleteSessions(next func(ctx context.Context, c *api.Client, session string) []string) cobra.CompletionFunc {
	return a.Complete(func(ctx context.Context, c *api.Client, args []string) []string {
		if len(args) > 0 {
			if next == nil {
				return nil
			}
			return next(ctx, c, args[0])
		}
		var names []string
		if list, err := c.Sessions(ctx, api.SessionFilter{Statuses: []string{api.StatusRunning}}); err == nil {
			for _, s := range list {
				names = append(names, s.Name)
			}
		}
		return names
	})
}

// Complete offers names that the manager knows; args are the arguments that are complete.
func (a *Frame) Complete(names func(ctx context.Context, c *api.Client, args []string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		c, err := a.Client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		var out []cobra.Completion
		for _, n := range names(ctx, c, args) {
			if n != "" && strings.HasPrefix(n, typed) {
				out = append(out, n)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
