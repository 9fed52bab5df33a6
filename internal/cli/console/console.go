// Package console opens the console of a cluster, or serves it on the user's own machine, with the local app proxy of a remote cluster:
// browsers that cannot reach the cluster's app proxy reach its apps through this process. Package cli adds its verb to the command line.
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
	"berth.dev/berth/api/login"
	"berth.dev/berth/internal/cli/frame"
	"berth.dev/berth/web"
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
		Use:   "console",
		Short: "Open the console of the cluster, or serve it on this machine",
		Long: `Open the console of the cluster that the profile in use is logged in at, and print its address.

With --local the console is served on this machine, until Ctrl-C, for a cluster that the browser cannot reach, or whose app
proxy it cannot reach. It acts as this command line: there is no login. The address that is printed leads to a page that lists your
running sessions and their apps as links; the same address is what another web console takes as its proxy, when --origin
names where that console is.

Each app that is opened gets a port of 127.0.0.1, and its connections go through the manager or its app proxy with the
keypair of this command line. Only who knows the printed address gets in.`,
		Example: `  berth console
  berth console --local
  berth console --local --origin https://console.example.org --port 5050`,
		Args: frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&o.local, "local", false, "serve it on this machine")
	f.StringVar(&o.origin, "origin", "", "origin of the web console that may use it, such as https://console.example.org")
	f.IntVar(&o.port, "port", defaultPort, "port of 127.0.0.1 to serve on; 0 takes any")
	f.BoolVar(&o.noBrowser, "no-browser", false, "only print the address")
	return cmd
}

// open opens the console of the web server that the profile is logged in at.
func (o *consoleOptions) open(cmd *cobra.Command, c *api.Client) error {
	if o.origin != "" || cmd.Flags().Changed("port") {
		return frame.Usage(frame.Hint(errors.New("--origin and --port are for a console that is served here"), "berth console --local"))
	}
	endpoint := c.Config().Endpoint
	address := login.AddressOf(endpoint)
	if address == "" {
		return frame.Hint(fmt.Errorf("%s is the address of a manager, which has no console", endpoint),
			"berth login ADDRESS logs in at the cluster's web server; berth console --local serves the console here")
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), address); err != nil {
		return err
	}
	if o.noBrowser || !o.Browse(address) {
		frame.Say(cmd, "follow the address")
	}
	return nil
}

func (o *consoleOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	if !o.local {
		return o.open(cmd, c)
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
	var handler http.Handler = p
	shown := address
	if files := web.Console(); files != nil {
		s := newServed(p, files)
		p.console = true
		p.mux.HandleFunc("GET /"+entry, s.enter)
		handler, shown = s, address+entry
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), address); err != nil {
		_ = l.Close()
		return err
	}
	if shown != address {
		frame.Say(cmd, "the console: %s", shown)
	}
	if !o.noBrowser && o.Browse(shown) {
		frame.Say(cmd, "opened in the browser; Ctrl-C ends it")
	} else {
		frame.Say(cmd, "follow the address; Ctrl-C ends it")
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
	stopServing := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stopServing()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	frame.Say(cmd, "no longer serving")
	return nil
}
