package cli

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

type sessionInfoOptions struct {
	app     *app
	explain bool
	json    bool
}

func (a *app) newSessionInfo() *cobra.Command {
	o := &sessionInfoOptions{app: a}
	cmd := &cobra.Command{
		Use:     "info SESSION",
		Short:   "Describe a session",
		Long:    "Describe a session: its state and the reason for it, what it holds and where it runs.",
		Example: "  berth session info mylab --json",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	cmd.Flags().BoolVar(&o.explain, "explain", false, "also say what a waiting session waits for, as berth session why does")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *sessionInfoOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, session string) error {
	var s api.SessionInfo
	err := orEnded(ctx, c, session, func(session string) (err error) {
		s, err = c.SessionInfo(ctx, session)
		return err
	})
	if err != nil {
		return err
	}
	var e *api.Explanation
	if o.explain && s.Status == api.StatusPending {
		found, err := c.ExplainSession(ctx, s.ID)
		if err != nil {
			return err
		}
		e = &found
	}
	if o.json {
		return printJSON(cmd.OutOrStdout(), struct {
			api.SessionInfo
			Explanation *api.Explanation `json:"explanation,omitempty"`
		}{s, e})
	}
	var f fields
	f.add("id", s.ID)
	f.add("name", s.Name)
	f.add("type", s.Type)
	f.add("status", s.Status)
	f.add("because", s.Reason())
	if s.Result != api.ResultUndefined {
		f.add("result", s.Result)
	}
	if s.ExitCode != nil {
		f.add("exit code", strconv.Itoa(*s.ExitCode))
	}
	f.add("image", s.Image)
	f.add("slots", slots(s.Occupying))
	f.add("requested", slots(s.Requested))
	f.add("agents", strings.Join(s.AgentIDs, ", "))
	f.add("resource group", s.ResourceGroup)
	f.add("domain", s.Domain)
	f.add("container", deref(s.ContainerID))
	f.add("folders", foldersText(s.Mounts))
	f.add("tag", deref(s.Tag))
	f.add("created", s.CreatedAt)
	f.add("ended", deref(s.TerminatedAt))
	f.add("idle", idleLine(s.IdleChecks))
	if s.NumQueries > 0 {
		f.add("cells run", strconv.FormatInt(s.NumQueries, 10))
	}
	if e != nil {
		f = append(f, o.app.explanationFields(*e)...)
	}
	return f.write(cmd.OutOrStdout(), o.app.colour(cmd.OutOrStdout()))
}
