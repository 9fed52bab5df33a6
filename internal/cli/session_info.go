package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/device"
	"berth.dev/berth/internal/cli/frame"
)

type sessionInfoOptions struct {
	app     *verbs
	explain bool
	json    bool
}

func (a *verbs) newSessionInfo() *cobra.Command {
	o := &sessionInfoOptions{app: a}
	cmd := &cobra.Command{
		Use:     "info SESSION",
		Short:   "Describe a session",
		Long:    "Describe a session: its state and the reason for it, what it holds and where it runs.",
		Example: "  berth session info mylab --json",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	cmd.Flags().BoolVar(&o.explain, "explain", false, "also say what a waiting session waits for, as berth session why does")
	frame.JSONFlag(cmd, &o.json)
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
	held := heldDevices(ctx, c, s)
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), struct {
			api.SessionInfo
			Explanation *api.Explanation `json:"explanation,omitempty"`
			Devices     []device.Kernel  `json:"kernelDevices,omitempty"`
		}{s, e, held})
	}
	slots := frame.SlotsOf(ctx, c)
	var f frame.Fields
	f.Add("id", s.ID)
	f.Add("name", s.Name)
	f.Add("type", s.Type)
	f.Add("status", s.Status)
	f.Add("because", s.Reason())
	if s.Result != api.ResultUndefined {
		f.Add("result", s.Result)
	}
	if s.ExitCode != nil {
		f.Add("exit code", strconv.Itoa(*s.ExitCode))
	}
	if len(s.Kernels) > 1 {
		roles := slices.ContainsFunc(s.Kernels, func(k api.SessionKernel) bool { return k.Role != "main" && k.Role != "sub" })
		for _, k := range s.Kernels {
			text := k.Status
			if k.ExitCode != nil {
				text += ", exit code " + strconv.Itoa(*k.ExitCode)
			}
			text += ", kernel " + k.ID
			if roles {
				text += ", role " + k.Role + ", " + slots.Text(k.Requested) + ", " + k.Image
			}
			f.Add(k.Hostname, text)
		}
	}
	f.Add("image", s.Image)
	f.Add("slots", slots.Text(s.Occupying))
	f.Add("requested", slots.Text(s.Requested))
	addDevices(&f, held)
	f.Add("agents", strings.Join(s.AgentIDs, ", "))
	f.Add("resource group", s.ResourceGroup)
	f.Add("domain", s.Domain)
	f.Add("container", frame.Deref(s.ContainerID))
	f.Add("folders", foldersText(s.Mounts))
	f.Add("tag", frame.Deref(s.Tag))
	f.Add("created", s.CreatedAt)
	f.Add("ended", frame.Deref(s.TerminatedAt))
	f.Add("idle", idleLine(s.IdleChecks))
	if s.NumQueries > 0 {
		f.Add("cells run", strconv.FormatInt(s.NumQueries, 10))
	}
	if e != nil {
		f = append(f, o.app.explanationFields(slots, *e)...)
	}
	return f.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}

// heldDevices is what the containers of a session hold; nil where nothing can be said: the session has ended, waits, or the manager is
// older.
func heldDevices(ctx context.Context, c *api.Client, s api.SessionInfo) []device.Kernel {
	if s.Status == api.StatusPending || slices.Contains(api.EndedStatuses, s.Status) {
		return nil
	}
	told, err := device.OfSession(ctx, c, s.ID)
	if err != nil {
		return nil // what is shown without it is true all the same
	}
	return told.Kernels
}

// addDevices says of each container which accelerators it has and how its devices lie to each other.
func addDevices(f *frame.Fields, kernels []device.Kernel) {
	for _, k := range kernels {
		where := ""
		if len(kernels) > 1 {
			where = " of " + k.Hostname
		}
		var list []string
		for _, d := range k.Devices {
			if d.Slot == "cpu" || d.Slot == "mem" {
				continue
			}
			text := strings.TrimSpace(d.ID + " " + d.Model)
			if d.Amount != "1" {
				text = d.Amount + " of " + text
			}
			if d.Healthy != nil && !*d.Healthy {
				text += " (broken)"
			}
			list = append(list, text)
		}
		f.Add("devices"+where, strings.Join(list, ", "))
		f.Add("placed"+where, k.Why)
	}
}
