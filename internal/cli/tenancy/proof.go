package tenancy

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/credential"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newIdentity() *cobra.Command {
	return frame.Group("identity", "Who users are at identity providers",
		"List and end the links between users and people of identity providers. Without --user they are your own.",
		a.newIdentityList(), a.newIdentityUnlink())
}

func (a *verbs) newIdentityList() *cobra.Command {
	var user string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "List identities",
		Long:    "List who you are at identity providers, or a user whom you administer.",
		Example: "  berth identity list\n  berth identity list --user ada@example.org",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			all, err := credential.ListIdentities(ctx, c, user)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), all.Items)
			}
			t := frame.Table{Titles: []string{"PROVIDER", "SUBJECT", "EMAIL THERE", "ROLE GIVEN", "LAST SEEN"}}
			for _, i := range all.Items {
				t.Rows = append(t.Rows, []string{i.Provider, i.Subject, i.Email, i.GivenRole, i.LastSeen.Local().Format(time.DateTime)})
			}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	cmd.Flags().StringVar(&user, "user", "", "those of this user, by email")
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newIdentityUnlink() *cobra.Command {
	var user string
	cmd := &cobra.Command{
		Use: "unlink PROVIDER", Short: "End an identity",
		Long: "End who a user is at an identity provider. Memberships and the role that the provider gave go, and the user's logins end.\n" +
			"Whoever comes from there next is somebody new.",
		Example: "  berth identity unlink corp --user ada@example.org",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if err := credential.Unlink(ctx, c, user, args[0]); err != nil {
				return err
			}
			frame.Say(cmd, "the identity at %s has ended", args[0])
			return nil
		}),
	}
	cmd.Flags().StringVar(&user, "user", "", "that of this user, by email")
	return cmd
}

func (a *verbs) newPasskey() *cobra.Command {
	return frame.Group("passkey", "Keys of devices that log in",
		"List and delete passkeys. They are enrolled in a browser, which the device is at.",
		a.newPasskeyList(), a.newPasskeyDelete())
}

func (a *verbs) newPasskeyList() *cobra.Command {
	var user string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "List passkeys",
		Long:    "List your passkeys, or those of a user whom you administer.",
		Example: "  berth passkey list\n  berth passkey list --user ada@example.org",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			all, err := credential.ListPasskeys(ctx, c, user)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), all.Items)
			}
			t := frame.Table{Titles: []string{"ID", "NAME", "SINCE", "LAST USED", "STATE"}}
			for _, k := range all.Items {
				used, state := "never", "good"
				if k.LastUsed != nil {
					used = k.LastUsed.Local().Format(time.DateTime)
				}
				if k.Cloned {
					state = "closed: it was copied"
				}
				t.Rows = append(t.Rows, []string{k.ID, k.Name, k.CreatedAt.Local().Format(time.DateTime), used, state})
			}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	cmd.Flags().StringVar(&user, "user", "", "those of this user, by email")
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newPasskeyDelete() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID", Short: "Delete a passkey",
		Long:    "Delete one of your passkeys, or one of a user whom you administer: then that user's logins end, too.",
		Example: "  berth passkey rm 2f1c3b7e-5a0d-4c55-9d5c-0d3f8e6f1a11",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if err := credential.DeletePasskey(ctx, c, args[0]); err != nil {
				return err
			}
			frame.Say(cmd, "passkey %s opens nothing any more", args[0])
			return nil
		}),
	}
}
