// Package console serves, on the user's own machine, the local app proxy of a remote cluster: browsers that cannot reach the
// cluster's app proxy reach its apps through this process. Package cli adds its verb to the command line.
//
// It answers the first version of the app proxy's protocol. Whoever can reach the local port and knows the random part of
// its address can use the apps of the keypair that the command line has; pages of other sites can do neither.
package console

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

// defaultPort is where consoles look for a local proxy.
const defaultPort = 5050

// verbs make the commands of this package.
type verbs struct{ *frame.Frame }

// Commands returns the verb of the console.
func Commands(f *frame.Frame) []*cobra.Command {
	v := &verbs{f}
	return []*cobra.Command{v.newConsole()}
}

type consoleOptions struct {
	*verbs
	local     bool
	origin    string
	port      int
	noBrowser bool
}

func (a *verbs) newConsole() *cobra.Command {
	o := &consoleOptions{verbs: a}
	cmd := &cobra.Command{
		Use:   "console --local",
		Short: "Reach the apps of a remote cluster from this machine's browser",
		Long: `Serve an app proxy on this machine, until Ctrl-C, for a cluster whose own app proxy the browser cannot reach. It prints the
address of a page that lists your running sessions and their apps as links; the same address is what a web console
takes as its proxy, when --origin names where that console is.

Each app that is opened gets a port of 127.0.0.1, and its connections go through the manager or its app proxy with the
keypair of this command line. Only who knows the printed address gets in.`,
		Example: `  berth console --local
  berth console --local --origin https://console.example.org --port 5050`,
		Args: frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&o.local, "local", false, "serve on this machine (there is no other way yet)")
	f.StringVar(&o.origin, "origin", "", "origin of the web console that may use it, such as https://console.example.org")
	f.IntVar(&o.port, "port", defaultPort, "port of 127.0.0.1 to serve on; 0 takes any")
	f.BoolVar(&o.noBrowser, "no-browser", false, "only print the address")
	return cmd
}

func (o *consoleOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	if !o.local {
		return frame.Usage(frame.Hint(errors.New("say that it is to be served here"), "berth console --local"))
	}
	if o.origin != "" {
		u, err := url.Parse(o.origin)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.TrimRight(u.Path, "/") != "" ||
			u.RawQuery != "" ||
			u.User != nil {
			return frame.Usage(frame.Hint(fmt.Errorf("--origin %q is no origin", o.origin), "write it as https://console.example.org"))
		}
		o.origin = u.Scheme + "://" + u.Host
	}
	if _, err := c.Roles(ctx); err != nil {
		return err // say now that the cluster cannot be used
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port)))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return frame.Hint(fmt.Errorf("port %d of this machine is taken", o.port), "berth console --local --port 0 takes a free one")
	case errors.Is(err, os.ErrPermission):
		return frame.Hint(fmt.Errorf("port %d of this machine is reserved", o.port), "berth console --local --port 0 takes a free one")
	case err != nil:
		return err
	}
	signals, stopSignals := o.Interrupts()
	defer stopSignals()
	ctx, stop := frame.UntilSignal(ctx, signals)
	defer stop()
	p := newProxy(c, o.origin, rand.Text(), l.Addr().String(), o.Now)
	defer p.close()
	address := "http://" + p.host + p.path
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), address); err != nil {
		_ = l.Close()
		return err
	}
	if !o.noBrowser && o.Browse(address) {
		frame.Say(cmd, "opened in the browser; Ctrl-C ends it")
	} else {
		frame.Say(cmd, "follow the address; Ctrl-C ends it")
	}
	server := &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
	stopServing := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stopServing()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	frame.Say(cmd, "no longer serving")
	return nil
}
