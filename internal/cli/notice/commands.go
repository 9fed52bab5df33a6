// Package notice has the client verbs about notices by e-mail and webhook.
package notice

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/notice"
	"berth.dev/berth/internal/cli/frame"
)

// verbs make the commands of this package.
type verbs struct{ *frame.Frame }

// Commands returns the client verbs about notices.
func Commands(f *frame.Frame) []*cobra.Command {
	v := &verbs{f}
	return []*cobra.Command{frame.Group(
		"notice", "Hear by e-mail or webhook what happened",
		"Say of what you want to hear by e-mail and at a webhook: sessions that ended, failed or will end because nobody uses them,\n"+
			"and folders that were shared with you. By default you hear of nothing.",
		v.newShow(), v.newSet(), v.newTest(), v.newList(),
	)}
}

func (v *verbs) newShow() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show", Short: "Show where you hear of what",
		Long:    "Show of which kinds of notices you hear by e-mail and at your webhook. The webhook's secret is not shown again.",
		Example: "  berth notice show",
		Args:    frame.Args(cobra.NoArgs),
		RunE: v.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			p, err := notice.Get(ctx, c)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), p)
			}
			return write(cmd.OutOrStdout(), p)
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

// write tells preferences to people.
func write(w io.Writer, p notice.Preferences) error {
	email := p.Email
	if p.NoEmail != "" {
		email += " (" + p.NoEmail + ")"
	}
	hook := p.WebhookURL
	if hook == "" {
		hook = "none"
	}
	_, err := fmt.Fprintf(w, "e-mail:  %s\n         %s\nwebhook: %s\n         %s\n", email, kindsText(p.EmailKinds), hook,
		kindsText(p.WebhookKinds))
	return err
}

func kindsText(kinds []string) string {
	if len(kinds) == 0 {
		return "nothing"
	}
	return strings.Join(kinds, ", ")
}

func (v *verbs) newSet() *cobra.Command {
	var email, webhook, address string
	var fresh, asJSON bool
	cmd := &cobra.Command{
		Use: "set", Short: "Change where you hear of what",
		Long: "Change of which kinds of notices you hear where; what you do not name stays. The kinds are ended, failed, idle and\n" +
			"shared, with commas, or all or none. A webhook with a new address gets a new secret, which signs what is sent there: it is\n" +
			"printed now and shown nowhere else. An empty address removes the webhook.",
		Example: "  berth notice set --email failed,idle\n" +
			"  berth notice set --webhook-url https://hooks.example.org/berth --webhook all > secret\n" +
			"  berth notice set --new-secret > secret\n  berth notice set --email none --webhook-url ''",
		Args: frame.Args(cobra.NoArgs),
		RunE: v.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			now, err := notice.Get(ctx, c)
			if err != nil {
				return err
			}
			change := notice.PreferenceChange{EmailKinds: now.EmailKinds, WebhookURL: now.WebhookURL, WebhookKinds: now.WebhookKinds,
				NewSecret: fresh}
			f := cmd.Flags()
			if f.Changed("email") {
				change.EmailKinds = kindsOf(email, now.Kinds)
			}
			if f.Changed("webhook-url") {
				change.WebhookURL = address
			}
			switch {
			case f.Changed("webhook"):
				change.WebhookKinds = kindsOf(webhook, now.Kinds)
			case change.WebhookURL == "":
				change.WebhookKinds = []string{}
			}
			if now, err = notice.Set(ctx, c, change); err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), now)
			}
			frame.Say(cmd, "e-mail: %s; webhook: %s", kindsText(now.EmailKinds), kindsText(now.WebhookKinds))
			if len(now.EmailKinds) > 0 && now.NoEmail != "" {
				frame.Say(cmd, "no e-mail is sent: %s", now.NoEmail)
			}
			if now.WebhookSecret == "" {
				return nil
			}
			frame.Say(cmd, "the secret that signs what the webhook gets; it is shown only now:")
			_, err = fmt.Fprintln(cmd.OutOrStdout(), now.WebhookSecret)
			return err
		}),
	}
	f := cmd.Flags()
	f.StringVar(&email, "email", "", "kinds by e-mail: ended, failed, idle, shared, with commas; or all, none")
	f.StringVar(&webhook, "webhook", "", "kinds at the webhook, likewise")
	f.StringVar(&address, "webhook-url", "", "address of the webhook; empty removes it")
	f.BoolVar(&fresh, "new-secret", false, "make a new secret of the webhook")
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

// kindsOf reads kinds as they are written on the command line; the manager checks their names.
func kindsOf(text string, all []string) []string {
	switch text {
	case "all":
		return all
	case "none", "":
		return []string{}
	}
	return strings.Split(strings.ReplaceAll(text, " ", ""), ",")
}

func (v *verbs) newTest() *cobra.Command {
	return &cobra.Command{
		Use: "test email|webhook", Short: "Have a notice sent to try the way",
		Long:    "Have a notice sent that tells of nothing. berth notice list says what became of it. A few may be sent within some minutes.",
		Example: "  berth notice test webhook && berth notice list",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: v.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			sent, err := notice.Try(ctx, c, args[0])
			if err != nil {
				return err
			}
			frame.Say(cmd, "it is on its way; look with: berth notice list")
			_, err = fmt.Fprintln(cmd.OutOrStdout(), sent.ID)
			return err
		}),
	}
}

func (v *verbs) newList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "List your last notices and what became of them",
		Long: "List your last notices by e-mail and webhook, the newest first, and what became of them. What failed is not tried again;\n" +
			"what waits is.",
		Example: "  berth notice list",
		Args:    frame.Args(cobra.NoArgs),
		RunE: v.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			all, err := notice.List(ctx, c)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), all.Items)
			}
			t := frame.Table{Titles: []string{"WHEN", "KIND", "CHANNEL", "STATE", "TEXT"}}
			for _, d := range all.Items {
				t.Rows = append(t.Rows, []string{d.At.Local().Format(time.DateTime), d.Kind, d.Channel, stateText(d), d.Text})
			}
			return t.Write(cmd.OutOrStdout(), v.Colour(cmd.OutOrStdout()))
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

// stateText says what became of a notice, and why not more.
func stateText(d notice.Delivery) string {
	if d.Error == "" || d.State == "sent" {
		return d.State
	}
	return d.State + ": " + d.Error
}
