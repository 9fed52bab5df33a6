package folder

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newFolderInvitations() *cobra.Command {
	var sent, asJSON bool
	list := func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
		all, err := c.Invitations(ctx, sent)
		if err != nil {
			return err
		}
		if asJSON {
			return frame.PrintJSON(cmd.OutOrStdout(), all)
		}
		if len(all) == 0 {
			frame.Say(cmd, "no open invitations")
			return nil
		}
		t := frame.Table{Titles: []string{"FOLDER", "FROM", "TO", "PERMISSION", "AGE", "ID"}}
		for _, i := range all {
			t.Rows = append(t.Rows, []string{i.FolderName, i.Inviter, i.Invitee, i.Permission, frame.Age(i.CreatedAt, a.Now()), i.ID})
		}
		return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
	}
	cmd := &cobra.Command{
		Use:     "invitations",
		Short:   "List invitations to folders, accept and reject them",
		Long:    "List the open invitations to folders of others, accept and reject them.",
		Example: "  berth folder invitations\n  berth folder invitations accept data",
		Args:    frame.Args(cobra.NoArgs),
		RunE:    a.Run(list),
	}
	cmd.Flags().BoolVar(&sent, "sent", false, "those that you sent")
	frame.JSONFlag(cmd, &asJSON)
	cmd.AddCommand(
		a.newInvitationVerb(
			"accept", "Accept invitations", "Accept invitations to folders; you can use them from now on.", "accepted", false,
			(*api.Client).AcceptInvitation,
		),
		a.newInvitationVerb(
			"reject", "Reject invitations", "Reject invitations to folders.", "rejected", false, (*api.Client).DeleteInvitation,
		),
		a.newInvitationVerb(
			"cancel", "Take invitations back", "Take invitations back that you sent and that were not accepted yet.", "taken back", true,
			(*api.Client).DeleteInvitation,
		),
	)
	return cmd
}

func (a *verbs) newInvitationVerb(
	name, short, long, done string, sent bool, act func(*api.Client, context.Context, string) error,
) *cobra.Command {
	return &cobra.Command{
		Use:     name + " FOLDER|ID...",
		Short:   short,
		Long:    long + " They are named by the folder, or by their id when there are several of it.",
		Example: "  berth folder invitations " + name + " data",
		Args:    frame.Args(cobra.MinimumNArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
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
					return frame.Hint(err, "berth folder invitations")
				}
				frame.Say(cmd, "the invitation to folder %s is %s", i.FolderName, done)
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
