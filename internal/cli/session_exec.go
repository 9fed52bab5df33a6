package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type sessionExecOptions struct {
	stdin  bool
	tty    bool
	kernel string
}

func (a *verbs) newSessionExec() *cobra.Command {
	o := &sessionExecOptions{}
	cmd := &cobra.Command{
		Use:   "exec SESSION -- COMMAND [ARG...]",
		Short: "Run a program inside a session",
		Long:  "Run a program inside a running session, beside its interpreter, and pass its exit code through.",
		Example: "  berth session exec -it mylab -- bash\n  berth session exec mylab -- ls -l\n" +
			"  berth session exec --kernel sub1 mylab -- hostname",
		Args: frame.Args(cobra.MinimumNArgs(2)),
		RunE: a.Run(o.run),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.stdin, "interactive", "i", false, "pass standard input to the program")
	f.BoolVarP(&o.tty, "tty", "t", false, "give the program a terminal")
	frame.KernelFlag(cmd, &o.kernel)
	// Flags after the session belong to the program, also without --.
	f.SetInterspersed(false)
	return cmd
}

func (o *sessionExecOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
	session, argv := args[0], args[1:]
	if argv[0] == "--" {
		argv = argv[1:]
	}
	if len(argv) == 0 {
		return frame.Usage(frame.Hint(errors.New("no command is named"), "%s --help", cmd.CommandPath()))
	}
	e := api.Exec{Command: argv, TTY: o.tty}
	s := api.ExecStreams{Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr()}
	if o.stdin {
		s.Stdin = cmd.InOrStdin()
	}
	if o.tty {
		if !o.stdin || !frame.IsTerminal(cmd.InOrStdin()) {
			return frame.Usage(
				frame.Hint(errors.New("-t needs -i and a terminal as standard input"), "leave -t out, as in %s -i", cmd.CommandPath()),
			)
		}
		var restore func()
		var err error
		if restore, err = rawTerminal(cmd.InOrStdin().(*os.File), &e, &s); err != nil {
			return err
		}
		defer restore()
	}
	code, err := c.Exec(ctx, frame.InKernel(session, o.kernel), e, s)
	if err != nil {
		return sessionHint(err)
	}
	return frame.ExitWith(code)
}

// rawTerminal hands the terminal to the program: every key goes through, and changes of
// its size are told.
func rawTerminal(f *os.File, e *api.Exec, s *api.ExecStreams) (restore func(), err error) {
	fd := int(f.Fd())
	size := func() api.TerminalSize {
		cols, rows, err := term.GetSize(fd)
		if err != nil {
			return api.TerminalSize{Rows: 24, Cols: 80}
		}
		return api.TerminalSize{Rows: uint16(rows), Cols: uint16(cols)}
	}
	old, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	e.Size = size()
	winch := make(chan os.Signal, 1)
	signal.Notify(winch, syscall.SIGWINCH)
	resize, done := make(chan api.TerminalSize), make(chan struct{})
	s.Resize = resize
	var w sync.WaitGroup
	w.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-winch:
			}
			select {
			case <-done:
				return
			case resize <- size():
			}
		}
	})
	return func() {
		signal.Stop(winch)
		close(done)
		w.Wait()
		_ = term.Restore(fd, old)
	}, nil
}
