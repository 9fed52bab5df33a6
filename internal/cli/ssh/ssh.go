// Package ssh holds the client verbs that reach sessions by the SSH programs and editors of this machine: ssh, ssh-config,
// code, and the hidden ssh-proxy that carries their bytes. It speaks no SSH itself. Package cli adds them to the command line.
package ssh

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

const (
	// sshApp is the app of every session that speaks SSH.
	sshApp = "sshd"
	// user is whom sessions know.
	user = "work"
	// home is where sessions begin.
	home = "/home/work"
	// suffix makes host names of sessions.
	suffix = ".berth"
	// failure is how ssh ends when it is not the remote program that failed.
	failure = 255
)

// verbs make the commands of this package.
type verbs struct {
	*frame.Frame
	// self is the path of this program.
	self func() (string, error)
}

// Commands returns the verbs that use SSH. self finds the path of this program.
func Commands(f *frame.Frame, self func() (string, error)) []*cobra.Command {
	v := &verbs{f, self}
	return []*cobra.Command{v.newSSH(), v.newProxy(), v.newConfig(), v.newCode()}
}

type sshOptions struct {
	*verbs
	forwards  []string
	remotes   []string
	dynamics  []string
	agent     bool
	noCommand bool
	tty       bool
	noTTY     bool
	verbose   bool
	kernel    string
}

func (a *verbs) newSSH() *cobra.Command {
	o := &sshOptions{verbs: a}
	cmd := &cobra.Command{
		Use:   "ssh SESSION [COMMAND [ARG...]]",
		Short: "Log into a session, or run a command there, by SSH",
		Long: `Log into a running session, or run a command there, with the ssh program of this machine, and pass its exit code through.

Nothing has to be set up: the session's own key is fetched into a private directory, and its host key is remembered for
that session alone. berth ssh-config does the same for plain ssh, scp, sftp, rsync and editors.`,
		Example: `  berth ssh mylab
  berth ssh mylab nvidia-smi
  berth ssh --kernel sub1 mylab
  berth ssh -L 5432:127.0.0.1:5432 -N mylab`,
		Args:              frame.Args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.CompleteSessions(nil),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0], args[1:])
		}),
	}
	f := cmd.Flags()
	// Flags after the session belong to the command.
	f.SetInterspersed(false)
	f.StringArrayVarP(&o.forwards, "local-forward", "L", nil, "forward a local port: [ADDRESS:]PORT:HOST:PORT (repeatable)")
	f.StringArrayVarP(&o.remotes, "remote-forward", "R", nil, "forward a port of the session: [ADDRESS:]PORT:HOST:PORT (repeatable)")
	f.StringArrayVarP(&o.dynamics, "dynamic-forward", "D", nil, "serve SOCKS on a local port (repeatable)")
	f.BoolVarP(&o.agent, "forward-agent", "A", false, "let the session use the keys of the local agent")
	f.BoolVarP(&o.noCommand, "no-command", "N", false, "run nothing, only forward ports")
	f.BoolVarP(&o.tty, "tty", "t", false, "give a COMMAND a terminal too")
	f.BoolVarP(&o.noTTY, "no-tty", "T", false, "give the shell no terminal")
	frame.KernelFlag(cmd, &o.kernel)
	f.BoolVarP(&o.verbose, "verbose", "v", false, "show what ssh does")
	return cmd
}

func (o *sshOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, session string, command []string) error {
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	program, err := o.Programs.LookPath("ssh")
	if err != nil {
		return frame.Hint(
			errors.New("this machine has no ssh program"),
			"install it (apt install openssh-client, for example), or berth session exec -it %s -- bash", session,
		)
	}
	info, err := frame.RunningSession(ctx, c, session)
	if err != nil {
		return err
	}
	e, err := o.entry(info, o.kernel)
	if err != nil {
		return err
	}
	cached, err := e.ensureKey(ctx, c, time.Time{})
	if err != nil {
		return err
	}
	argv := e.options()
	if !o.verbose {
		argv = append(argv, "-o", "LogLevel=ERROR")
	}
	for _, set := range []struct {
		flag string
		on   bool
	}{{"-A", o.agent}, {"-N", o.noCommand}, {"-t", o.tty}, {"-T", o.noTTY}, {"-v", o.verbose}} {
		if set.on {
			argv = append(argv, set.flag)
		}
	}
	for flag, values := range map[string][]string{"-L": o.forwards, "-R": o.remotes, "-D": o.dynamics} {
		for _, v := range values {
			argv = append(argv, flag, v)
		}
	}
	argv = append(append(argv, "--", e.host), command...)
	// The terminal sends Ctrl-C to ssh as well, which knows what to do with it.
	_, stop := o.Interrupts()
	defer stop()
	code, err := o.Programs.Run(context.WithoutCancel(ctx), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), program, argv...)
	if err != nil {
		return fmt.Errorf("run ssh: %w", err)
	}
	if code == failure && cached {
		e.forgetKey() // it may not be the session's any more; the next try fetches it
	}
	return frame.ExitWith(code)
}

// quoted makes text one word of a shell.
func quoted(text string) string {
	if text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=@,+") == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
