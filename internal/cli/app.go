package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"berth.dev/berth/api"
)

// app is what all verbs share: where the cluster is found and how the process is seen.
type app struct {
	build    string
	stateDir string
	endpoint string

	getenv func(string) string
	now    func() time.Time
	// look is the pause between two looks at a session that is waited for.
	look time.Duration
	// interrupts delivers Ctrl-C until its stop function is called.
	interrupts func() (<-chan os.Signal, func())
}

// Commands returns the client verbs. build is shown to the manager as the user agent.
func Commands(build string) []*cobra.Command {
	return (&app{build: build, getenv: os.Getenv, now: time.Now, look: lookBusy, interrupts: osInterrupts}).commands()
}

func (a *app) commands() []*cobra.Command {
	all := []*cobra.Command{a.newRun(), a.newSession(), a.newFolder(), a.newCp(), a.newAgent(), a.newScheduler(), a.newIdle(), a.newPreset(), a.newImage(), a.newWhoami()}
	for _, c := range all {
		f := c.PersistentFlags()
		f.StringVar(&a.stateDir, "state-dir", "", "state directory of the cluster whose client.env to use")
		f.StringVar(&a.endpoint, "endpoint", "", "address of the manager, such as http://127.0.0.1:8090")
		c.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
			return usage(hint(err, cmd.CommandPath()+" --help"))
		})
		_ = c.MarkPersistentFlagDirname("state-dir")
	}
	return all
}

func osInterrupts() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
	return ch, func() { signal.Stop(ch) }
}

// client finds the cluster and makes a client for it.
func (a *app) client() (*api.Client, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		home = ""
	}
	cfg, err := api.LoadConfig(api.Lookup{
		Getenv: a.getenv, StateDir: a.stateDir, Endpoint: a.endpoint, Root: os.Geteuid() == 0, Home: home,
	})
	if err != nil {
		return nil, err
	}
	return api.New(cfg, api.WithUserAgent("berth/"+a.build))
}

// group makes a command that only holds others.
func group(name, short, long string, verbs ...*cobra.Command) *cobra.Command {
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
			return usage(hint(fmt.Errorf("%s", msg), cmd.CommandPath()+" --help"))
		},
		SuggestionsMinimumDistance: 2,
	}
	c.AddCommand(verbs...)
	return c
}

// args wraps a validator so that its complaint counts as wrong usage.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usage(hint(err, cmd.CommandPath()+" --help"))
		}
		return nil
	}
}

// verb is the body of a command that talks to the manager.
type verb func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error

// run adapts a verb to cobra.
func (a *app) run(v verb) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		return v(cmd.Context(), cmd, c, args)
	}
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colour reports whether a stream may be coloured.
func (a *app) colour(stream any) bool {
	return a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb" && isTerminal(stream)
}

// say writes talk.
func say(cmd *cobra.Command, format string, args ...any) {
	fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...)
}

// printJSON writes data for programs.
func printJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// jsonFlag adds --json to a read.
func jsonFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON for programs")
}

// confirm asks before something is destroyed, on terminals only.
func confirm(cmd *cobra.Command, yes bool, question string) error {
	if yes || !isTerminal(cmd.InOrStdin()) || !isTerminal(cmd.ErrOrStderr()) {
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
