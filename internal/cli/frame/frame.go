// Package frame is what all client verbs of the command line share: how the cluster is found, how errors end, how tables,
// progress and questions look. It knows no verb; packages cli and those below it use it, and cmd/berth for its exit codes.
package frame

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"berth.dev/berth/api"
	"berth.dev/berth/api/profile"
)

// Frame is what all verbs share: where the cluster is found and how the process is seen.
type Frame struct {
	Build    string
	stateDir string
	endpoint string
	profile  string

	Getenv func(string) string
	Now    func() time.Time
	// Look is the pause between two looks at a session that is waited for.
	Look time.Duration
	// Patience is how long a verb that follows something goes on without an answer of the manager.
	Patience time.Duration
	// Interrupts delivers Ctrl-C until its stop function is called.
	Interrupts func() (<-chan os.Signal, func())
	Programs   Programs
}

// New returns the frame of this process. build is shown to the manager as the user agent.
func New(build string) *Frame {
	return &Frame{Build: build, Getenv: os.Getenv, Now: time.Now, Look: lookBusy, Patience: patience, Interrupts: osInterrupts,
		Programs: osPrograms{}}
}

// Flags adds what all verbs understand to a command that stands at the top.
func (a *Frame) Flags(c *cobra.Command) {
	f := c.PersistentFlags()
	f.StringVar(&a.stateDir, "state-dir", "", "state directory of the cluster whose client.env to use")
	f.StringVar(&a.endpoint, "endpoint", "", "address of the manager, such as http://127.0.0.1:8081")
	f.StringVar(&a.profile, "profile", "", "profile that says which cluster to use (see berth profile)")
	c.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return Usage(Hint(err, cmd.CommandPath()+" --help"))
	})
	_ = c.MarkPersistentFlagDirname("state-dir")
}

func osInterrupts() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
	return ch, func() { signal.Stop(ch) }
}

func (a *Frame) lookup() api.Lookup {
	home, err := os.UserHomeDir()
	if err != nil {
		home = ""
	}
	if h := a.Getenv("HOME"); h != "" {
		home = h
	}
	return api.Lookup{Getenv: a.Getenv, StateDir: a.stateDir, Profile: a.profile, Endpoint: a.endpoint, Root: os.Geteuid() == 0, Home: home}
}

// Client finds the cluster and makes a client for it.
func (a *Frame) Client() (*api.Client, error) {
	cfg, err := api.LoadConfig(a.lookup())
	if err != nil {
		return nil, err
	}
	return api.New(cfg, api.WithUserAgent("berth/"+a.Build))
}

// Profiles is where the user's profiles are kept.
func (a *Frame) Profiles() profile.Store { return a.lookup().Profiles() }

// ProfileFlag is the profile that the command line or the environment names, "" when neither does.
func (a *Frame) ProfileFlag() string {
	if a.profile != "" {
		return a.profile
	}
	return a.Getenv(profile.Env)
}

// ProfileName is the profile that is named, else the one in use, else "".
func (a *Frame) ProfileName() (string, error) {
	if name := a.ProfileFlag(); name != "" {
		return name, nil
	}
	return a.Profiles().Current()
}

// Group makes a command that only holds others.
func Group(name, short, long string, verbs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: name, Short: short, Long: long,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			msg := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
			if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
				msg += "; did you mean " + strings.Join(s, " or ") + "?"
			}
			return Usage(Hint(fmt.Errorf("%s", msg), cmd.CommandPath()+" --help"))
		},
		SuggestionsMinimumDistance: 2,
	}
	c.AddCommand(verbs...)
	return c
}

// Args wraps a validator so that its complaint counts as wrong usage.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return Usage(Hint(argumentError(cmd, args, err), cmd.CommandPath()+" --help"))
		}
		return nil
	}
}

// argumentError says what a command takes where cobra's validators only count.
func argumentError(cmd *cobra.Command, args []string, err error) error {
	if !strings.Contains(err.Error(), "arg(s)") {
		return err
	}
	takes := strings.TrimSuffix(cmd.UseLine(), " [flags]")
	if len(args) == 0 {
		return fmt.Errorf("arguments are missing; it takes: %s", takes)
	}
	return fmt.Errorf("the number of arguments is wrong; it takes: %s", takes)
}

// verb is the body of a command that talks to the manager.
type verb func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error

// Run adapts a verb to cobra.
func (a *Frame) Run(v verb) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.Client()
		if err != nil {
			return err
		}
		defer c.Close()
		err = v(cmd.Context(), cmd, c, args)
		var problem *api.Error
		if c.Config().Login != "" && errors.As(err, &problem) && problem.Status == http.StatusUnauthorized {
			// The server's own advice wins over a hint, but of a login that ended it cannot know the command.
			if problem.Slug() == api.SlugLoginExpired {
				problem.Next = ""
			}
			return Hint(err, "berth login (logs in again)")
		}
		return err
	}
}

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Colour reports whether a stream may be coloured.
func (a *Frame) Colour(stream any) bool {
	return a.Getenv("NO_COLOR") == "" && a.Getenv("TERM") != "dumb" && IsTerminal(stream)
}

// Say writes talk.
func Say(cmd *cobra.Command, format string, args ...any) {
	fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...)
}

// PrintJSON writes data for programs.
func PrintJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// JSONFlag adds --json to a read.
func JSONFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON for programs")
}

// Confirm asks before something is destroyed, on terminals only.
func Confirm(cmd *cobra.Command, yes bool, question string) error {
	if yes || !IsTerminal(cmd.InOrStdin()) || !IsTerminal(cmd.ErrOrStderr()) {
		return nil
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s [y/N] ", question)
	var answer string
	_, _ = fmt.Fscanln(cmd.InOrStdin(), &answer)
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return fmt.Errorf("nothing was done: the question was not answered with yes")
}
