// Package login has the client verbs about logins by password at a web server, and about profiles: what the command line knows of
// several clusters.
package login

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"berth.dev/berth/api"
	"berth.dev/berth/api/login"
	"berth.dev/berth/api/pin"
	"berth.dev/berth/api/profile"
	"berth.dev/berth/internal/cli/frame"
)

// userKey is the line of a profile that remembers who logged in; it is no secret, and no other program reads it.
const userKey = "BERTH_USER"

// verbs make the commands of this package.
type verbs struct{ *frame.Frame }

// Commands returns the client verbs about logins and profiles.
func Commands(f *frame.Frame) []*cobra.Command {
	v := &verbs{f}
	return []*cobra.Command{v.newLogin(), v.newLogout(), v.newProfile()}
}

type loginOptions struct {
	app             *verbs
	user, otp       string
	fingerprint     string
	passwordStdin   bool
	force, browser  bool
	domain, project string
}

func (a *verbs) newLogin() *cobra.Command {
	o := &loginOptions{app: a}
	cmd := &cobra.Command{
		Use: "login [ADDRESS]", Short: "Log in at a web server by password, and see your logins",
		Long: "Log in at the web server of a cluster by password. The login is kept in a profile, which all verbs use from then on: its\n" +
			"secret is the login's token, no password and no keypair. Without an address the profile's own one is used again, so\n" +
			"`berth login` renews what has ended. `berth logout` ends the login.",
		Example: "  berth login https://berth.example.org\n  berth login https://berth.lab:8080 --profile lab --user ada@example.org\n" +
			"  pass show berth | berth login https://berth.example.org --user ada@example.org --password-stdin",
		Args: frame.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), cmd, args) },
	}
	f := cmd.Flags()
	f.StringVar(&o.user, "user", "", "e-mail address or name (default: the profile's, else it is asked for)")
	f.BoolVar(&o.passwordStdin, "password-stdin", false, "read the password from standard input")
	f.StringVar(&o.otp, "otp", "", "one-time password, where you have a second factor (it is asked for on terminals)")
	f.BoolVar(&o.browser, "browser", false, "log in by a web page, as you do there: by password, passkey or your organisation's login")
	f.BoolVar(&o.force, "force", false, "end your oldest login when you have as many as allowed")
	f.StringVar(&o.fingerprint, "ca-fingerprint", "", "trust this certificate authority alone: sha256: and 64 digits")
	f.StringVar(&o.domain, "domain", "", "domain of your sessions (default: default)")
	f.StringVar(&o.project, "project", "", "project of your sessions (default: default)")
	cmd.AddCommand(a.newLoginList(), a.newLoginEnd())
	return cmd
}

// target is the profile that a login is kept in, and where it is made.
type target struct {
	name   string
	old    profile.Values
	server *login.Server
}

func (o *loginOptions) run(ctx context.Context, cmd *cobra.Command, args []string) error {
	t, err := o.target(args)
	if err != nil {
		return err
	}
	defer t.server.Close()
	if _, err := t.server.Check(ctx, ""); err != nil {
		return o.explain(err)
	}
	token, err := o.prove(ctx, cmd, t)
	if err != nil {
		return o.explain(err)
	}
	v := profile.Values{
		api.EnvEndpoint: t.server.Endpoint(), api.EnvLogin: string(token), pin.Env: o.fingerprint,
		api.EnvDomain: cmp.Or(o.domain, t.old.Get(api.EnvDomain)), api.EnvGroup: cmp.Or(o.project, t.old.Get(api.EnvGroup)),
	}
	store := o.app.Profiles()
	if err = o.home(ctx, v); err == nil {
		err = store.Put(t.name, v)
	}
	if err == nil {
		err = store.Use(t.name)
	}
	if err != nil {
		// A login that nobody can use any more is not left behind.
		_ = t.server.End(context.WithoutCancel(ctx), token)
		return fmt.Errorf("keep the login in profile %s: %w", t.name, err)
	}
	// The profile's login before it is of no use to anybody now.
	if old := t.old.Get(api.EnvLogin); old != "" && t.old.Get(api.EnvEndpoint) == t.server.Endpoint() {
		_ = t.server.End(ctx, api.Secret(old))
	}
	frame.Say(cmd, "logged in at %s as %s; profile %s is in use", t.server.Address(), v[userKey], t.name)
	for _, name := range []string{profile.Env, api.EnvEndpoint, api.EnvAccessKey, api.EnvToken} {
		if other := o.app.Getenv(name); other != "" && other != t.name {
			frame.Say(cmd, "note: %s is set in the environment and goes before the profile", name)
			break
		}
	}
	return nil
}

// prove has the user log in, by password or in a browser, and returns the login's token.
func (o *loginOptions) prove(ctx context.Context, cmd *cobra.Command, t target) (api.Secret, error) {
	if o.browser {
		return o.app.byBrowser(ctx, cmd, t.server)
	}
	c, err := o.ask(cmd, t)
	if err != nil {
		return "", err
	}
	l, err := o.open(ctx, cmd, t.server, c)
	return l.Token, err
}

// home completes a profile: who the user is, and the user's own domain and one of the projects where nobody named others.
func (o *loginOptions) home(ctx context.Context, v profile.Values) error {
	c, err := api.New(api.Config{Endpoint: v[api.EnvEndpoint], Login: api.Secret(v[api.EnvLogin]), Fingerprint: v[pin.Env]},
		api.WithUserAgent("berth/"+o.app.Build))
	if err != nil {
		return err
	}
	defer c.Close()
	var out struct {
		User *struct {
			Email  string `json:"email"`
			Domain string `json:"domain_name"`
			Groups []struct {
				Name string `json:"name"`
			} `json:"groups"`
		} `json:"user"`
	}
	if err := c.GraphQL(ctx, "query{user{email domain_name groups{name}}}", nil, &out); err != nil {
		return fmt.Errorf("ask who the user is: %w", err)
	}
	if out.User == nil {
		return errors.New("ask who the user is: the manager knows of no user")
	}
	v[userKey] = out.User.Email
	v[api.EnvDomain] = cmp.Or(v[api.EnvDomain], out.User.Domain)
	project := ""
	for _, g := range out.User.Groups {
		if project == "" || g.Name == "default" {
			project = g.Name
		}
	}
	v[api.EnvGroup] = cmp.Or(v[api.EnvGroup], project)
	return nil
}

// target finds the profile and the web server: those that are named, or what the profile knows.
func (o *loginOptions) target(args []string) (target, error) {
	store := o.app.Profiles()
	name, err := o.app.ProfileName()
	if err != nil {
		return target{}, err
	}
	address := ""
	if len(args) == 1 {
		address = args[0]
		if !strings.Contains(address, "://") {
			address = "https://" + address
		}
		if name == "" || o.app.ProfileFlag() == "" {
			if name, err = nameOf(address); err != nil {
				return target{}, frame.Usage(frame.Hint(err, "berth login ADDRESS --profile NAME"))
			}
		}
	}
	t := target{name: name}
	if name != "" {
		t.old, err = store.Get(name)
		if err != nil && (!errors.Is(err, profile.ErrNone) || address == "") {
			return target{}, frame.Hint(err, "berth profile list, or berth login ADDRESS --profile %s", name)
		}
	}
	if address == "" {
		if address = login.AddressOf(t.old.Get(api.EnvEndpoint)); address == "" {
			return target{}, frame.Usage(frame.Hint(errors.New("no web server is known"), "berth login https://ADDRESS"))
		}
	}
	if o.fingerprint == "" {
		o.fingerprint = cmp.Or(o.app.Getenv(pin.Env), t.old.Get(pin.Env))
	}
	t.server, err = login.New(address, o.fingerprint, "berth/"+o.app.Build)
	if err != nil {
		return target{}, frame.Usage(err)
	}
	return t, nil
}

// nameOf makes the name of a profile of an address: its host.
func nameOf(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	name := strings.ToLower(u.Hostname())
	return name, profile.CheckName(name)
}

// ask reads who logs in. Standard input is a terminal, or holds the password.
func (o *loginOptions) ask(cmd *cobra.Command, t target) (login.Credentials, error) {
	c := login.Credentials{User: cmp.Or(o.user, t.old.Get(userKey)), OTP: api.Secret(o.otp), Force: o.force}
	switch in, terminal := cmd.InOrStdin().(*os.File); {
	case o.passwordStdin:
		line, err := firstLine(cmd.InOrStdin())
		if err != nil {
			return c, fmt.Errorf("read the password: %w", err)
		}
		c.Password = api.Secret(line)
	case terminal && term.IsTerminal(int(in.Fd())):
		if c.User == "" {
			fmt.Fprint(cmd.ErrOrStderr(), "user: ")
			line, err := firstLine(in)
			if err != nil {
				return c, err
			}
			c.User = strings.TrimSpace(line)
		}
		var err error
		if c.Password, err = hidden(cmd, in, "password of "+c.User); err != nil {
			return c, err
		}
	default:
		return c, frame.Usage(frame.Hint(errors.New("there is no terminal to ask for the password"), "--password-stdin"))
	}
	if c.User == "" || c.Password == "" {
		return c, frame.Usage(frame.Hint(errors.New("the user and the password must not be empty"), "berth login ADDRESS --user NAME"))
	}
	return c, nil
}

// open logs in, and asks for a one-time password when the server wants one.
func (o *loginOptions) open(ctx context.Context, cmd *cobra.Command, s *login.Server, c login.Credentials) (login.Login, error) {
	l, err := s.Open(ctx, c)
	var refused *login.Refused
	in, terminal := cmd.InOrStdin().(*os.File)
	if !errors.As(err, &refused) || refused.Reason != login.ReasonOTP || c.OTP != "" || !terminal || !term.IsTerminal(int(in.Fd())) {
		return l, err
	}
	if c.OTP, err = hidden(cmd, in, "one-time password"); err != nil {
		return l, err
	}
	return s.Open(ctx, c)
}

// explain adds the next step to why there is no login.
func (o *loginOptions) explain(err error) error {
	var refused *login.Refused
	switch {
	case errors.Is(err, login.ErrNoWebServer):
		return frame.Hint(err, "give the address of a web server (role webserver); with a manager's, use a keypair: berth profile set --help")
	case !errors.As(err, &refused):
		return err
	case refused.Reason == login.ReasonOTP:
		return frame.Hint(err, "berth login --otp CODE")
	case refused.Reason == login.ReasonEnrol:
		return frame.Hint(err, "enrol a one-time password in the web interface first")
	case refused.Reason == login.ReasonFull:
		return frame.Hint(err, "berth login --force ends your oldest login")
	case refused.Reason == "auth-failed":
		return frame.Hint(err, "check the user's name and the password")
	}
	return err
}

func hidden(cmd *cobra.Command, in *os.File, what string) (api.Secret, error) {
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: ", what)
	raw, err := term.ReadPassword(int(in.Fd()))
	fmt.Fprintln(cmd.ErrOrStderr())
	if err != nil {
		return "", fmt.Errorf("read the %s: %w", what, err)
	}
	return api.Secret(raw), nil
}

// maxLine bounds what is read of a person or a pipe.
const maxLine = 4 << 10

func firstLine(in io.Reader) (string, error) {
	line, err := bufio.NewReader(io.LimitReader(in, maxLine)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return strings.TrimRight(line, "\r\n"), nil
}

func (a *verbs) newLogout() *cobra.Command {
	return &cobra.Command{
		Use: "logout", Short: "End the login of the profile in use",
		Long: "End the login of the profile in use, or of the one that --profile names. The web server forgets it first: while it cannot be\n" +
			"reached, the profile keeps its login. The profile itself stays, and `berth login` logs in there again.",
		Example: "  berth logout\n  berth logout --profile lab",
		Args:    frame.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			store := a.Profiles()
			name, err := a.ProfileName()
			if err != nil {
				return err
			}
			if name == "" {
				return frame.Hint(errors.New("no profile is in use"), "berth profile list")
			}
			v, err := store.Get(name)
			if err != nil {
				return err
			}
			if v.Get(api.EnvLogin) == "" {
				frame.Say(cmd, "profile %s holds no login", name)
				return nil
			}
			s, err := login.New(login.AddressOf(v.Get(api.EnvEndpoint)), v.Get(pin.Env), "berth/"+a.Build)
			if err != nil {
				return err
			}
			defer s.Close()
			if err := s.End(cmd.Context(), api.Secret(v.Get(api.EnvLogin))); err != nil {
				return frame.Hint(err, "try again when the web server answers; berth profile rm %s forgets the login without ending it", name)
			}
			delete(v, api.EnvLogin)
			if err := store.Put(name, v); err != nil {
				return fmt.Errorf("the login has ended, but profile %s still holds it: %w", name, err)
			}
			frame.Say(cmd, "logged out of %s; profile %s stays", s.Address(), name)
			return nil
		},
	}
}
