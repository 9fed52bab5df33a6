package app

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type listOptions struct {
	*verbs
	kernel string
	json   bool
}

func (a *verbs) newList() *cobra.Command {
	o := &listOptions{verbs: a}
	cmd := &cobra.Command{
		Use:   "list [SESSION]",
		Short: "List the apps of a session, or all that is published",
		Long: `List the apps of a session, how they are doing and where they are published. Without a session, list everything that is
published by you or shared with you.`,
		Example:           "  berth app list mylab\n  berth app list --json",
		Args:              frame.Args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: a.CompleteSessions(nil),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if len(args) == 0 && o.kernel != "" {
				return frame.Usage(frame.Hint(errors.New("--kernel needs a session"), "berth app list SESSION --kernel %s", o.kernel))
			}
			if len(args) == 0 {
				return o.published(ctx, cmd, c)
			}
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	frame.KernelFlag(cmd, &o.kernel)
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

// listed is an app with where it is published.
type listed struct {
	api.App
	Circuits []api.Circuit `json:"circuits,omitempty"`
}

func (o *listOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, session string) error {
	info, err := frame.RunningSession(ctx, c, session)
	if err != nil {
		return err
	}
	at := place{info, o.kernel}
	apps, err := c.Apps(ctx, at.ref())
	if err != nil {
		return err
	}
	// What is published is an addition: a manager without app proxies has apps all the same.
	circuits, err := c.Circuits(ctx, at.ref())
	if err != nil && !api.IsNotFound(err) {
		frame.Say(cmd, "where they are published cannot be told: %v", err)
	}
	out := make([]listed, len(apps))
	for i, a := range apps {
		out[i].App = a
		for _, k := range circuits {
			if k.App == a.Name && (o.kernel != "" || ofMain(k)) {
				out[i].Circuits = append(out[i].Circuits, k)
			}
		}
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), out)
	}
	t := frame.Table{Titles: []string{"APP", "PROTOCOL", "PORTS", "STATE", "ORIGIN", "PUBLISHED"}}
	var notes []string
	for _, a := range out {
		t.Rows = append(t.Rows, []string{a.Name, a.Protocol, portsOf(a.Ports), a.State, a.Origin, addresses(a.Circuits)})
		if a.Detail != "" && a.State != api.AppReady {
			notes = append(notes, a.Name+": "+a.Detail)
		}
	}
	if err := t.Write(cmd.OutOrStdout(), o.Colour(cmd.OutOrStdout())); err != nil {
		return err
	}
	for _, n := range notes {
		frame.Say(cmd, "%s", n)
	}
	return nil
}

// published lists circuits of all sessions.
func (o *listOptions) published(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	list, err := c.Circuits(ctx, "")
	if err != nil {
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), list)
	}
	if len(list) == 0 {
		frame.Say(cmd, "nothing is published; berth app open SESSION APP publishes an app")
		return nil
	}
	t := frame.Table{Titles: []string{"SESSION", "APP", "URL", "FOR", "EXPIRES"}}
	for _, k := range list {
		expires := ""
		if k.ExpiresAt != nil {
			expires = k.ExpiresAt.UTC().Format("2006-01-02 15:04 UTC")
		}
		t.Rows = append(t.Rows, []string{sessionOf(k), k.App, where(k), audience(k), expires})
	}
	return t.Write(cmd.OutOrStdout(), o.Colour(cmd.OutOrStdout()))
}

// sessionOf words which session a circuit leads to, and which of its kernels unless that is the main one.
func sessionOf(k api.Circuit) string {
	if ofMain(k) {
		return k.SessionName
	}
	return frame.InKernel(k.SessionName, k.Kernel)
}

func portsOf(ports []int) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = fmt.Sprint(p)
	}
	return strings.Join(texts, ",")
}

func addresses(list []api.Circuit) string {
	var texts []string
	for _, k := range list {
		who := audience(k)
		switch {
		case byTicket(k) && who == "you":
			continue // what port-forward and ssh go through
		case who != "you":
			texts = append(texts, where(k)+" ("+who+")")
		default:
			texts = append(texts, where(k))
		}
	}
	return strings.Join(texts, ", ")
}

// byTicket reports whether a circuit has no address that could be visited: raw TCP needs a port of its own.
func byTicket(k api.Circuit) bool {
	return k.Mode == api.CircuitSubdomain && !k.HTTP()
}

// where words the address of a circuit.
func where(k api.Circuit) string {
	if byTicket(k) {
		return "by berth port-forward"
	}
	return k.URL
}

// audience words who may use a circuit.
func audience(k api.Circuit) string {
	who := "you"
	switch {
	case k.Public:
		who = "everybody"
	case len(k.Users)+len(k.Projects) > 0:
		parts := append([]string(nil), k.Users...)
		for _, p := range k.Projects {
			parts = append(parts, "project "+p)
		}
		who = frame.Names(parts)
	}
	if len(k.Allowed) > 0 {
		who += " from " + strings.Join(k.Allowed, ", ")
	}
	return who
}
