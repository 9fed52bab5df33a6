package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

const (
	// maxForwarded bounds the connections of one forwarded port at a time; others wait to be accepted.
	maxForwarded = 256
	// maxForwards bounds the operands of one command.
	maxForwards = 32
	// endedLook bounds how long a failed connection asks whether the session still lives.
	endedLook = 10 * time.Second
)

type forwardOptions struct {
	*verbs
	address string
	kernel  string
	json    bool
}

func (a *verbs) newPortForward() *cobra.Command {
	o := &forwardOptions{verbs: a}
	cmd := &cobra.Command{
		Use:   "port-forward SESSION PORT|APP[:LOCAL]...",
		Short: "Bring apps and ports of a session to ports of this machine",
		Long: `Bring apps and ports of a running session to ports of this machine, until Ctrl-C. LOCAL is the port here: by default the
same number, or another one when that is taken; 0 takes any.

Connections go through the app proxy, or through the manager where no proxy can be reached. When one of them restarts, the
connections that it carried end and new ones are made as soon as it is back. Nobody else is let in: only programs that
reach the local port, on this machine by default, can use it.`,
		Example: `  berth port-forward mylab 8888
  berth port-forward mylab jupyter:9999 5432:0`,
		Args:              frame.Args(cobra.MinimumNArgs(2)),
		ValidArgsFunction: a.complete(),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0], args[1:])
		}),
	}
	cmd.Flags().StringVar(&o.address, "address", "127.0.0.1", "address of this machine to listen on")
	frame.KernelFlag(cmd, &o.kernel)
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

// Forward is one app at a local port.
type Forward struct {
	Session string `json:"session"` // id
	Kernel  string `json:"kernel,omitempty"`
	App     string `json:"app,omitempty"`
	Port    int    `json:"port,omitempty"` // inside the container; 0 means the app's first
	Local   string `json:"local"`          // host:port

	text     string
	explicit bool // the local port was asked for
	wish     int
	listener net.Listener
}

// parseForward reads PORT|APP[:LOCAL].
func parseForward(text string) (Forward, error) {
	bad := func(why string) error {
		return frame.Usage(frame.Hint(fmt.Errorf("%q: %s", text, why), "write it as 8888, jupyter, 8888:9999 or jupyter:0"))
	}
	what, local, given := strings.Cut(text, ":")
	f := Forward{text: what, explicit: given}
	if what == "" {
		return f, bad("no port and no app is named")
	}
	if n, err := strconv.Atoi(what); err == nil {
		if n < 1 || n > 65535 {
			return f, bad("ports go from 1 to 65535")
		}
		f.Port, f.wish = n, n
	} else {
		f.App = what
	}
	if given {
		n, err := strconv.Atoi(local)
		if err != nil || n < 0 || n > 65535 {
			return f, bad("the local port is a number from 0 to 65535")
		}
		f.wish = n
	}
	return f, nil
}

func (o *forwardOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, session string, specs []string) error {
	if len(specs) > maxForwards {
		return frame.Usage(frame.Hint(fmt.Errorf("more than %d ports", maxForwards), "forward them with several commands"))
	}
	var list []Forward
	for _, text := range specs {
		f, err := parseForward(text)
		if err != nil {
			return err
		}
		list = append(list, f)
	}
	info, err := frame.RunningSession(ctx, c, session)
	if err != nil {
		return err
	}
	at := place{info, o.kernel}
	apps, err := c.Apps(ctx, at.ref())
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range list {
			if f.listener != nil {
				_ = f.listener.Close()
			}
		}
	}()
	for i := range list {
		f := &list[i]
		f.Session, f.Kernel = info.ID, o.kernel
		if err := f.choose(cmd, at, apps); err != nil {
			return err
		}
		if err := f.listen(o.address); err != nil {
			return err
		}
	}
	signals, stopSignals := o.Interrupts()
	defer stopSignals()
	ctx, stop := frame.UntilSignal(ctx, signals)
	defer stop()
	if o.json {
		if err := frame.PrintJSON(cmd.OutOrStdout(), list); err != nil {
			return err
		}
	} else {
		for _, f := range list {
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s -> %s\n", f.Local, f.text); err != nil {
				return err
			}
		}
	}
	if err := o.serve(ctx, cmd, c, info, list); err != nil {
		return err
	}
	frame.Say(cmd, "no longer forwarding")
	return nil
}

// choose finds the app that is meant. A port that no app is known at is used all the same: a program may open it later.
func (f *Forward) choose(cmd *cobra.Command, at place, apps []api.App) error {
	app, err := find(at, apps, f.text)
	switch {
	case err != nil && f.Port != 0:
		frame.Say(cmd, "nothing is known to listen on port %d of %s yet", f.Port, at.text())
		return nil
	case err != nil:
		return err
	case app.State == api.AppMissing:
		return frame.Hint(
			fmt.Errorf("app %s of %s cannot be started: %s", app.Name, at.text(), detailOf(app)), "berth app list %s", at.operand(),
		)
	case app.Name != f.text:
		f.text = app.Name + ":" + f.text
	}
	f.App = app.Name
	if f.wish == 0 && !f.explicit && len(app.Ports) > 0 {
		f.wish = app.Ports[0]
	}
	return nil
}

// listen takes the local port; one that was not asked for may be another.
func (f *Forward) listen(address string) error {
	l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(f.wish)))
	if err != nil && !f.explicit && (errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, os.ErrPermission)) {
		l, err = net.Listen("tcp", net.JoinHostPort(address, "0"))
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return frame.Hint(
			fmt.Errorf("port %d of this machine is taken", f.wish), "berth port-forward SESSION %s:0 takes a free one", f.text,
		)
	case errors.Is(err, os.ErrPermission):
		return frame.Hint(
			fmt.Errorf("port %d of this machine is reserved", f.wish), "berth port-forward SESSION %s:0 takes a free one", f.text,
		)
	case err != nil:
		return frame.Usage(
			frame.Hint(
				fmt.Errorf("listen on %s: %w", address, err), "--address is an address of this machine, such as 127.0.0.1 or 0.0.0.0",
			),
		)
	}
	f.listener, f.Local = l, l.Addr().String()
	return nil
}

// serve accepts until the context ends or the session has ended. It waits for its connections, which it ends.
func (o *forwardOptions) serve(ctx context.Context, cmd *cobra.Command, c *api.Client, info api.SessionInfo, list []Forward) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	say := &teller{cmd: cmd}
	var all sync.WaitGroup
	for _, f := range list {
		all.Go(func() {
			f.accept(ctx, c, func(err error) {
				say.tell("connect to " + f.text + ": " + err.Error())
				if ended := hasEnded(ctx, c, info); ended != nil {
					cancel(ended)
				}
			})
		})
	}
	<-ctx.Done()
	for _, f := range list {
		_ = f.listener.Close()
	}
	all.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, frame.ErrInterrupted) && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// hasEnded says that a session ended, when it did.
func hasEnded(ctx context.Context, c *api.Client, info api.SessionInfo) error {
	ctx, cancel := context.WithTimeout(ctx, endedLook)
	defer cancel()
	now, err := c.SessionInfo(ctx, info.ID)
	if err == nil && !api.Ended(now.Status) || err != nil && !api.IsNotFound(err) {
		return nil
	}
	return frame.Hint(fmt.Errorf("session %s has ended", info.Name), "berth session info %s", info.ID)
}

// accept serves one local port until its listener is closed. failed hears of connections that could not be made.
func (f Forward) accept(ctx context.Context, c *api.Client, failed func(error)) {
	var all sync.WaitGroup
	defer all.Wait()
	free := make(chan struct{}, maxForwarded)
	for {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return
		}
		local, err := f.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
				return
			}
			<-free
			select { // out of descriptors, for example
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		all.Go(func() {
			defer func() { <-free }()
			defer local.Close()
			remote, err := c.DialApp(ctx, frame.InKernel(f.Session, f.Kernel), f.App, f.Port)
			if err == nil {
				err = frame.Join(ctx, local, remote)
			}
			if err != nil && ctx.Err() == nil {
				failed(err)
			}
		})
	}
}

// teller says each thing once, until something else is to be said.
type teller struct {
	mu   sync.Mutex
	cmd  *cobra.Command
	last string
}

func (t *teller) tell(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text != t.last {
		frame.Say(t.cmd, "%s", text)
		t.last = text
	}
}
