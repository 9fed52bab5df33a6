package runner

import (
	"bufio"
	"context"
	"io"
	"os"
	"strings"
	"time"
)

const (
	// networkWait bounds the wait for the network. The agent connects the container within milliseconds, or ends it.
	networkWait  = 20 * time.Second
	networkPause = time.Millisecond
	routeFile    = "/proc/net/route"
)

// awaitNetwork waits until the agent has connected the container. What the session runs first may need the network at once.
func (r *Runner) awaitNetwork(ctx context.Context) {
	if !r.cfg.AwaitNetwork {
		return
	}
	deadline := time.Now().Add(networkWait)
	for !connected(routeFile) {
		if time.Now().After(deadline) {
			r.log.Warn("the session has no network", "waited", networkWait)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(networkPause):
		}
	}
}

// connected reports whether the kernel's table of routes has a default one.
func connected(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	return defaultRoute(f)
}

// defaultRoute reports whether a table of routes has one to everywhere that is not through loopback.
func defaultRoute(table io.Reader) bool {
	for s := bufio.NewScanner(table); s.Scan(); {
		if f := strings.Fields(s.Text()); len(f) > 7 && f[0] != "lo" && f[1] == "00000000" && f[7] == "00000000" {
			return true
		}
	}
	return false
}
