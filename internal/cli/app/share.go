package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type shareOptions struct {
	*verbs
	users    []string
	projects []string
	public   bool
	private  bool
	allow    []string
	expire   time.Duration
	revoke   bool
	kernel   string
	json     bool
}

func (a *verbs) newShare() *cobra.Command {
	o := &shareOptions{verbs: a}
	cmd := &cobra.Command{
		Use:   "share SESSION APP",
		Short: "Say who may use a published app, and until when",
		Long: `Say who may use an app that berth app open published, and until when. Users and projects are added to those that have it
already; --private takes it back from all but you. Changes reach live connections within a second.

Whoever it is shared with opens it with berth app open, or follows its address and logs in.`,
		Example: `  berth app share mylab jupyter --user ada@example.com --project physics
  berth app share mylab 8000 --public --allow 10.0.0.0/8 --expire 2h
  berth app share mylab jupyter --private --revoke`,
		Args:              frame.Args(cobra.ExactArgs(2)),
		ValidArgsFunction: a.complete(),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0], args[1])
		}),
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.users, "user", nil, "email address of a user who may use it (repeatable)")
	f.StringSliceVar(&o.projects, "project", nil, "project whose members may use it (repeatable)")
	f.BoolVar(&o.public, "public", false, "let everybody in, without a login")
	f.BoolVar(&o.private, "private", false, "let only you in")
	f.StringSliceVar(
		&o.allow, "allow", nil, "addresses and prefixes that may visit, such as 10.0.0.0/8, in place of the present ones; any for all",
	)
	f.DurationVar(&o.expire, "expire", 0, "close it after this time, such as 2h")
	f.BoolVar(&o.revoke, "revoke", false, "end what visitors have now; they have to enter anew")
	frame.KernelFlag(cmd, &o.kernel)
	frame.JSONFlag(cmd, &o.json)
	cmd.MarkFlagsMutuallyExclusive("public", "private")
	cmd.MarkFlagsMutuallyExclusive("private", "user")
	cmd.MarkFlagsMutuallyExclusive("private", "project")
	return cmd
}

// change is what the flags make of a circuit.
func (o *shareOptions) change(k api.Circuit) (api.CircuitChange, error) {
	ch := api.CircuitChange{RevokeTickets: o.revoke}
	switch {
	case o.private:
		ch.Public, ch.Users, ch.Projects = new(false), &[]string{}, &[]string{}
	case o.public:
		ch.Public = new(true)
	}
	if len(o.users) > 0 {
		ch.Users = new(united(k.Users, o.users))
	}
	if len(o.projects) > 0 {
		ch.Projects = new(united(k.Projects, o.projects))
	}
	switch {
	case slices.Equal(o.allow, []string{"any"}):
		ch.Allowed = &[]string{}
	case len(o.allow) > 0:
		ch.Allowed = &o.allow
	}
	if o.expire < 0 {
		return ch, frame.Usage(frame.Hint(errors.New("--expire lies in the past"), "berth app close ends it now"))
	}
	if o.expire > 0 {
		ch.Expires = new(o.Now().Add(o.expire).UTC())
	}
	if ch == (api.CircuitChange{}) {
		return ch, frame.Usage(frame.Hint(errors.New("nothing is to change: say with whom to share it"), "berth app share --help"))
	}
	return ch, nil
}

func united(have, more []string) []string {
	out := slices.Clone(have)
	for _, m := range more {
		if !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	return out
}

func (o *shareOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, session, app string) error {
	if !slices.Equal(o.allow, []string{"any"}) {
		if err := checkAllowed(o.allow); err != nil {
			return err
		}
	}
	if _, err := o.change(api.Circuit{}); err != nil {
		return err
	}
	list, err := published(ctx, c, session, o.kernel, app)
	if err != nil {
		return err
	}
	for _, k := range list {
		ch, err := o.change(k)
		if err != nil {
			return err
		}
		if err := c.ChangeCircuit(ctx, k.ID, ch); err != nil {
			return fmt.Errorf("share app %s of session %s: %w", app, session, err)
		}
	}
	if list, err = circuitsOf(ctx, c, session, o.kernel, app); err != nil {
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), list)
	}
	for _, k := range list {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), k.URL); err != nil {
			return err
		}
		until := ""
		if k.ExpiresAt != nil {
			until = ", until " + k.ExpiresAt.UTC().Format("2006-01-02 15:04 UTC")
		}
		frame.Say(cmd, "open to %s%s", audience(k), until)
	}
	return nil
}
