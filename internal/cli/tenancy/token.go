package tenancy

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/credential"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newToken() *cobra.Command {
	return frame.Group("token", "Let programs in without a keypair",
		"Make, list and take back API tokens: secrets that a program sends instead of signing its requests, with an end and a scope.\n"+
			"With "+api.EnvToken+" in its environment, berth itself uses one instead of the keypair.",
		a.newTokenCreate(), a.newTokenList(), a.newTokenRemove())
}

func (a *verbs) newTokenCreate() *cobra.Command {
	r := credential.TokenRequest{}
	var asJSON bool
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Make an API token",
		Long: "Make an API token and print it; it is shown nowhere else. It can do what you can, within its scope, until it ends. It " +
			"is never\n" +
			"told secret keys, and changes no password, second factor or token.",
		Example: "  berth token create ci --area session --area folder --project default --expires 720h\n" +
			"  berth token create dashboard --read-only\n  berth token create nightly --for backup@default.service.invalid\n" +
			"  berth token create okta --for scim@default.service.invalid --scim okta --expires 8784h",
		Args: frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			r.Name = args[0]
			t, err := credential.CreateToken(ctx, c, r)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), t)
			}
			frame.Say(cmd, "token %s of %s is there until %s; it is shown only now", t.Name, t.Email,
				t.ExpiresAt.Local().Format(time.DateTime))
			_, err = fmt.Fprintln(cmd.OutOrStdout(), t.Secret)
			return err
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&r.ReadOnly, "read-only", false, "it changes nothing")
	f.StringArrayVar(&r.Areas, "area", nil, "what it is for: session, folder, image, tenancy or cluster (repeatable; default all)")
	f.StringArrayVar(&r.Projects, "project", nil, "project that it is for, by name or id (repeatable; default all)")
	f.StringVar(&r.ExpiresIn, "expires", "", "how long it lives, such as 24h (default 2160h, at most 8784h)")
	f.StringVar(&r.Provider, "scim", "", "it is for SCIM alone and speaks for this identity provider, such as okta; needs --for")
	f.StringVar(&r.For, "for", "", "service account that it is for, by its address (for administrators)")
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newTokenList() *cobra.Command {
	q := credential.TokenQuery{Limit: tokenPage}
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "List API tokens",
		Long:    "List your API tokens, the newest first. Administrators list those of their domain, superadmins all.",
		Example: "  berth token list\n  berth token list --all",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			all, err := allTokens(ctx, c, q)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), all)
			}
			t := frame.Table{Titles: []string{"ID", "NAME", "USER", "SCOPE", "ENDS", "LAST USED"}}
			for _, k := range all {
				ends, used := k.ExpiresAt.Local().Format(time.DateTime), "never"
				if k.Ended(a.Now()) {
					ends = "has ended"
				}
				if k.LastUsed != nil {
					used = k.LastUsed.Local().Format(time.DateTime)
				}
				t.Rows = append(t.Rows, []string{k.ID, k.Name, k.Email, scopeText(k), ends, used})
			}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	cmd.Flags().BoolVar(&q.All, "all", false, "those of everybody whom you administer")
	cmd.Flags().StringVar(&q.User, "user", "", "those of this user, by email")
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

const tokenPage = 100

func allTokens(ctx context.Context, c *api.Client, q credential.TokenQuery) ([]credential.Token, error) {
	all := []credential.Token{}
	for {
		q.Offset = len(all)
		page, err := credential.Tokens(ctx, c, q)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if len(page.Items) < tokenPage {
			return all, nil
		}
	}
}

// scopeText says in few words what a token may do.
func scopeText(t credential.Token) string {
	var words []string
	if t.ReadOnly {
		words = append(words, "read only")
	}
	if t.Provider != "" {
		words = append(words, "SCIM of "+t.Provider)
	}
	words = append(words, t.Areas...)
	if n := len(t.Projects); n > 0 {
		words = append(words, fmt.Sprintf("%d projects", n))
	}
	if len(words) == 0 {
		return "all"
	}
	return strings.Join(words, ", ")
}

func (a *verbs) newTokenRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm TOKEN", Short: "Take an API token back",
		Long: "Take an API token back, by its id or the name of one of yours. Requests with it are refused at once, and what began\n" +
			"with it ends.",
		Example: "  berth token rm ci",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			id := args[0]
			mine, err := allTokens(ctx, c, credential.TokenQuery{Limit: tokenPage})
			if err != nil {
				return err
			}
			for _, t := range mine {
				if t.Name == args[0] {
					id = t.ID
				}
			}
			if err := credential.DeleteToken(ctx, c, id); err != nil {
				return err
			}
			frame.Say(cmd, "token %s is taken back", args[0])
			return nil
		}),
	}
}

func (a *verbs) newServiceAccount() *cobra.Command {
	var domain, project string
	create := &cobra.Command{
		Use: "create NAME", Short: "Make a service account",
		Long: "Make a user for programs: no password lets it in, and administrators of its domain make its tokens (berth token " +
			"create --for).\n" +
			"It is listed, changed and shut out like other users. Prints its address.",
		Example: "  berth service-account create backup --project default",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			u, err := credential.CreateServiceAccount(ctx, c, args[0], domain, project)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), u.Email)
			return err
		}),
	}
	create.Flags().StringVar(&domain, "domain", "", "domain that it belongs to (default: your own)")
	create.Flags().StringVar(&project, "project", "", "project that it is a member of, by name or id")
	return frame.Group("service-account", "Make users for programs", "Make users that no password lets in, for programs.", create)
}
