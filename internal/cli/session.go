package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/device"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newSession() *cobra.Command {
	return frame.Group("session", "Create, watch and end sessions",
		"Create, watch and end sessions.\n\nA session is named by its name while it lives, or by its id at any time.",
		a.newSessionCreate(), a.newSessionList(), a.newSessionInfo(), a.newSessionLogs(), a.newSessionExec(),
		a.newSessionRm(), a.newSessionRestart(), a.newSessionRename(), a.newSessionCommit(), a.newSessionUpload(),
		a.newSessionDownload(), a.newSessionLs(), a.newSessionEvents(), a.newSessionWait(), a.newSessionKeepAlive(), a.newSessionWhy(),
		device.NewTop(a.Frame))
}

// orEnded calls f with the session; when no live session has that name, it tries the
// latest ended one of that name.
func orEnded(ctx context.Context, c *api.Client, session string, f func(session string) error) error {
	err := f(session)
	if !api.IsNotFound(err) {
		return err
	}
	ended, lookErr := c.Sessions(ctx, api.SessionFilter{Statuses: api.EndedStatuses, Name: session, Limit: 1})
	if lookErr != nil || len(ended) == 0 {
		return frame.Hint(err, "berth session list --all")
	}
	return f(ended[0].ID)
}

// sessionHint points at the list of sessions when one was not found.
func sessionHint(err error) error {
	if api.IsNotFound(err) {
		return frame.Hint(err, "berth session list")
	}
	return err
}
