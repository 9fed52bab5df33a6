package login

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/endpoint"
	"berth.dev/berth/api/pin"
	"berth.dev/berth/api/profile"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newProfile() *cobra.Command {
	return frame.Group("profile", "Clusters that you use",
		"Keep what the command line knows of several clusters: where each is, and how you get in. Every verb takes --profile, and without it\n"+
			"uses what the environment names, else the profile in use, else the cluster of this machine.",
		a.newProfileList(), a.newProfileUse(), a.newProfileSet(), a.newProfileRemove())
}

// entry is a profile as lists show it; it has no secrets.
type entry struct {
	Name     string `json:"name"`
	Current  bool   `json:"current"`
	Endpoint string `json:"endpoint"`
	// As is how the profile gets in: login, token, keypair or nothing.
	As   string `json:"as"`
	User string `json:"user,omitempty"`
}

func entryOf(name, current string, v profile.Values) entry {
	e := entry{Name: name, Current: name == current, Endpoint: v.Get(api.EnvEndpoint), As: "nothing", User: v.Get(userKey)}
	switch {
	case v.Get(api.EnvLogin) != "":
		e.As = "login"
	case v.Get(api.EnvToken) != "":
		e.As = "token"
	case v.Get(api.EnvAccessKey) != "":
		e.As, e.User = "keypair", v.Get(api.EnvAccessKey)
	}
	return e
}

func (a *verbs) newProfileList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "List the profiles", Long: "List the profiles. The one in use has a star. Secrets are not shown.",
		Example: "  berth profile list", Args: frame.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			store := a.Profiles()
			names, err := store.List()
			if err != nil {
				return err
			}
			current, err := store.Current()
			if err != nil {
				return err
			}
			list := []entry{}
			for _, name := range names {
				v, err := store.Get(name)
				if err != nil {
					return fmt.Errorf("read profile %s: %w", name, err)
				}
				list = append(list, entryOf(name, current, v))
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), list)
			}
			if len(list) == 0 {
				frame.Say(cmd, "there are no profiles; berth login ADDRESS makes one")
				return nil
			}
			t := frame.Table{Titles: []string{"", "NAME", "ENDPOINT", "AS", "USER"}}
			for _, e := range list {
				star := ""
				if e.Current {
					star = "*"
				}
				t.Rows = append(t.Rows, []string{star, e.Name, e.Endpoint, e.As, e.User})
			}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		},
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newProfileUse() *cobra.Command {
	var none bool
	cmd := &cobra.Command{
		Use: "use NAME", Short: "Use a profile from now on",
		Long:    "Use a profile from now on, or none: then verbs find the cluster of this machine again.",
		Example: "  berth profile use lab\n  berth profile use --none", Args: frame.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if none != (len(args) == 0) {
				return frame.Usage(errors.New("name a profile, or say --none"))
			}
			if none {
				return a.Profiles().Use("")
			}
			if err := a.Profiles().Use(args[0]); err != nil {
				return frame.Hint(err, "berth profile list")
			}
			frame.Say(cmd, "profile %s is in use", args[0])
			return nil
		},
	}
	cmd.Flags().BoolVar(&none, "none", false, "use no profile")
	return cmd
}

func (a *verbs) newProfileSet() *cobra.Command {
	var address, accessKey, fingerprint, domain, project string
	var token bool
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Write a profile with a keypair or an API token",
		Long: "Write a profile whose secret is read from standard input: the secret key of --access-key, or an API token (--token). What is\n" +
			"not given stays as it was. For a login by password use `berth login`.",
		Example: "  echo $SECRET | berth profile set lab --endpoint https://manager.lab:8081 --access-key AKIA...\n" +
			"  berth token create laptop | berth profile set laptop --endpoint https://manager.lab:8081 --token",
		Args: frame.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			store := a.Profiles()
			v, err := store.Get(args[0])
			if errors.Is(err, profile.ErrNone) {
				v, err = profile.Values{}, nil
			}
			if err != nil {
				return err
			}
			if address != "" {
				if _, err := endpoint.Parse(address); err != nil {
					return frame.Usage(err)
				}
				v[api.EnvEndpoint] = address
			}
			if accessKey != "" && token {
				return frame.Usage(errors.New("a profile has a keypair or a token, not both"))
			}
			if accessKey != "" || token {
				secret, err := firstLine(cmd.InOrStdin())
				if err != nil || secret == "" {
					return frame.Usage(errors.New("standard input must hold the secret in one line"))
				}
				for _, name := range []string{api.EnvAccessKey, api.EnvSecretKey, api.EnvToken, api.EnvLogin, userKey} {
					delete(v, name)
				}
				if token {
					v[api.EnvToken] = secret
				} else {
					v[api.EnvAccessKey], v[api.EnvSecretKey] = accessKey, secret
				}
			}
			for name, value := range map[string]string{pin.Env: fingerprint, api.EnvDomain: domain, api.EnvGroup: project} {
				if value != "" {
					v[name] = value
				}
			}
			if v.Get(api.EnvEndpoint) == "" {
				return frame.Usage(frame.Hint(errors.New("the profile has no endpoint"), "--endpoint https://HOST:PORT"))
			}
			if err := store.Put(args[0], v); err != nil {
				return err
			}
			frame.Say(cmd, "profile %s is written; berth profile use %s makes it the one in use", args[0], args[0])
			return nil
		},
	}
	f := cmd.Flags()
	// It hides the flag of all verbs, which says where this call goes.
	f.StringVar(&address, "endpoint", "", "address of the manager")
	f.StringVar(&accessKey, "access-key", "", "access key; the secret key is read from standard input")
	f.BoolVar(&token, "token", false, "read an API token from standard input")
	f.StringVar(&fingerprint, "ca-fingerprint", "", "trust this certificate authority alone: sha256: and 64 digits")
	f.StringVar(&domain, "domain", "", "domain of your sessions")
	f.StringVar(&project, "project", "", "project of your sessions")
	return cmd
}

func (a *verbs) newProfileRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME", Short: "Forget a profile",
		Long:    "Forget a profile. A login that it holds is not ended; `berth logout` does that.",
		Example: "  berth profile rm lab", Args: frame.Args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := a.Profiles().Get(args[0]); err != nil {
				return frame.Hint(err, "berth profile list")
			}
			return a.Profiles().Remove(args[0])
		},
	}
}
