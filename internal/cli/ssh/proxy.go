package ssh

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type proxyOptions struct {
	*verbs
	app string
}

// newProxy makes the command that ssh runs in place of a TCP connection.
func (a *verbs) newProxy() *cobra.Command {
	o := &proxyOptions{verbs: a}
	cmd := &cobra.Command{
		Use:   "ssh-proxy SESSION[:KERNEL]",
		Short: "Carry an SSH connection to a session (for ProxyCommand)",
		Long: `Connect standard input and output to the SSH server of a session, or of one of its kernels. This is for the ProxyCommand
of ssh; berth ssh-config writes it.`,
		Example: "  ssh -o ProxyCommand='berth ssh-proxy mylab' work@mylab",
		Args:    frame.Args(cobra.ExactArgs(1)),
		Hidden:  true,
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	cmd.Flags().StringVar(&o.app, "app", sshApp, "app to connect to")
	return cmd
}

func (o *proxyOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, session string) error {
	// Programs that read the configuration alone find the key here once the connection is there. Short connections wait for it.
	fetching, giveUp := context.WithTimeout(ctx, keyPatience)
	defer giveUp()
	var fetched sync.WaitGroup
	defer fetched.Wait()
	id, kernel, _ := strings.Cut(session, ":")
	if e, err := o.entry(api.SessionInfo{ID: id, Name: id}, kernel); err == nil {
		fetched.Go(func() { _, _ = e.ensureKey(fetching, c, o.Now().Add(-keyLife)) })
	}
	conn, err := c.DialApp(ctx, session, o.app, 0)
	if err != nil {
		giveUp()
		if _, e := frame.RunningSession(ctx, c, id); e != nil {
			return e // says what has become of the session
		}
		return err
	}
	defer conn.Close()
	return carry(cmd.InOrStdin(), cmd.OutOrStdout(), conn)
}

// carry copies both ways until the session's side has ended. The end of our input is passed on.
func carry(in io.Reader, out io.Writer, conn net.Conn) error {
	go func() { // ends with the process, or when our input does
		_, err := io.Copy(conn, in)
		frame.EndWrite(conn, err)
	}()
	_, err := io.Copy(out, conn)
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}
