package cli

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type sessionLsOptions struct {
	app    *verbs
	json   bool
	kernel string
}

func (a *verbs) newSessionLs() *cobra.Command {
	o := &sessionLsOptions{app: a}
	cmd := &cobra.Command{
		Use:     "ls SESSION [PATH]",
		Short:   "List files in a session",
		Long:    "List a directory below /home/work of a running session.",
		Example: "  berth session ls mylab data",
		Args:    frame.Args(cobra.RangeArgs(1, 2)),
		RunE:    a.Run(o.run),
	}
	frame.JSONFlag(cmd, &o.json)
	frame.KernelFlag(cmd, &o.kernel)
	return cmd
}

func (o *sessionLsOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
	dir := "."
	if len(args) == 2 {
		dir = args[1]
	}
	list, err := c.ListFiles(ctx, frame.InKernel(args[0], o.kernel), dir)
	if err != nil {
		return sessionHint(err)
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), list)
	}
	t := frame.Table{Titles: []string{"MODE", "SIZE", "MODIFIED", "NAME"}}
	for _, f := range list.Files {
		at := time.Unix(int64(f.MTime), 0).UTC().Format("2006-01-02 15:04")
		t.Rows = append(t.Rows, []string{f.Mode, strconv.FormatInt(f.Size, 10), at, f.Name})
	}
	return t.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}
