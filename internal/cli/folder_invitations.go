package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

func (a *app) newFolderInvitations() *cobra.Command {
	var sent, asJSON bool
	list := func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
		all, err := c.Invitations(ctx, sent)
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), all)
		}
		if len(all) == 0 {
			say(cmd, "no open invitations")
			return nil
		}
		t := table{titles: []string{"FOLDER", "FROM", "TO", "PERMISSION", "AGE", "ID"}}
		for _, i := range all {
			t.rows = append(t.rows, []string{i.FolderName, i.Inviter, i.Invitee, i.Permission, age(i.CreatedAt, a.now()), i.ID})
		}
		return t.write(cmd.OutOrStdout(), a.colour(cmd.OutOrStdout()))
	}
	cmd := &cobra.Command{
		Use:     "invitations",
		Short:   "List invitations to folders, accept and reject them",
		Long:    "List the open invitations to folders of others, accept and reject them.",
		Example: "  berth folder invitations\n  berth folder invitations accept data",
		Args:    args(cobra.NoArgs),
		RunE:    a.run(list),
	}
	cmd.Flags().BoolVar(&sent, "sent", false, "those that you sent")
	jsonFlag(cmd, &asJSON)
	cmd.AddCommand(
		a.newInvitationVerb("accept", "Accept invitations", "Accept invitations to folders; you can use them from now on.", "accepted", false, (*api.Client).AcceptInvitation),
		a.newInvitationVerb("reject", "Reject invitations", "Reject invitations to folders.", "rejected", false, (*api.Client).DeleteInvitation),
		a.newInvitationVerb("cancel", "Take invitations back", "Take invitations back that you sent and that were not accepted yet.", "taken back", true, (*api.Client).DeleteInvitation),
	)
	return cmd
}

func (a *app) newInvitationVerb(name, short, long, done string, sent bool, act func(*api.Client, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use:     name + " FOLDER|ID...",
		Short:   short,
		Long:    long + " They are named by the folder, or by their id when there are several of it.",
		Example: "  berth folder invitations " + name + " data",
		Args:    args(cobra.MinimumNArgs(1)),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			all, err := c.Invitations(ctx, sent)
			if err != nil {
				return err
			}
			return eachFolder(cmd, args, func(name string) error {
				i, err := findInvitation(all, name)
				if err == nil {
					err = act(c, ctx, i.ID)
				}
				if err != nil {
					return hint(err, "berth folder invitations")
				}
				say(cmd, "the invitation to folder %s is %s", i.FolderName, done)
				return nil
			})
		}),
	}
}

// findInvitation finds an invitation by its id or the name of its folder.
func findInvitation(all []api.Invitation, name string) (api.Invitation, error) {
	var found []api.Invitation
	for _, i := range all {
		if i.ID == name {
			return i, nil
		}
		if i.FolderName == name {
			found = append(found, i)
		}
	}
	switch len(found) {
	case 0:
		return api.Invitation{}, fmt.Errorf("there is no open invitation %s", name)
	case 1:
		return found[0], nil
	}
	return api.Invitation{}, fmt.Errorf("there are %d invitations to folders called %s; use the id", len(found), name)
}
