// Package app holds the client verbs about apps of sessions, one file per verb, and port-forward, which brings an app to a
// port of this machine. Package cli adds them to the command line.
package app

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

// verbs make the commands of this package.
type verbs struct{ *frame.Frame }

// Commands returns the verbs for apps.
func Commands(f *frame.Frame) []*cobra.Command {
	v := &verbs{f}
	return []*cobra.Command{v.newApp(), v.newPortForward()}
}

func (a *verbs) newApp() *cobra.Command {
	return frame.Group("app", "Open what listens inside a session, and say who may use it",
		"Open what listens inside a session, and say who may use it.\n\n"+
			"An app is named as berth app list shows it, or by a port that it listens on. Opening one publishes it at an address of its\n"+
			"own, for you alone; share lets others in, close takes the address away. berth port-forward reaches an app without\n"+
			"publishing it. Each kernel of a session with several has apps of its own: --kernel chooses one.",
		a.newList(), a.newOpen(), a.newStop(), a.newShare(), a.newClose())
}

// missing says that an app does not exist, and what does.
func missing(at place, name string, list []api.App) error {
	if _, err := strconv.ParseUint(name, 10, 16); err == nil {
		return frame.Hint(fmt.Errorf("nothing listens on port %s of %s", name, at.text()),
			"start the program in the session, then look with berth app list %s", at.operand())
	}
	names := make([]string, len(list))
	for i, a := range list {
		names[i] = a.Name
	}
	return frame.Hint(
		fmt.Errorf("%s has no app %s; it has: %s", at.text(), name, frame.Names(names)), "berth app list %s", at.operand(),
	)
}

// find takes an app by its name, or by a port that it listens on.
func find(at place, list []api.App, name string) (api.App, error) {
	port, _ := strconv.Atoi(name)
	for _, a := range list {
		if a.Name == name || port > 0 && a.HasPort(port) {
			return a, nil
		}
	}
	return api.App{}, missing(at, name, list)
}

// only finds the app that a session is for: its one HTTP app, or the one besides those that were installed in it.
func only(at place, list []api.App) (api.App, error) {
	var found, installed []api.App
	for _, a := range list {
		switch {
		case !a.HTTP() || a.Origin == api.AppIntrinsic || a.Name == "ttyd":
		case a.Origin == api.AppInstalled:
			installed = append(installed, a)
		default:
			found = append(found, a)
		}
	}
	if len(found) == 0 {
		found = installed
	}
	if len(found) == 1 {
		return found[0], nil
	}
	names := make([]string, len(list))
	for i, a := range list {
		names[i] = a.Name
	}
	return api.App{}, frame.Usage(
		frame.Hint(fmt.Errorf("say which app of %s: %s", at.text(), frame.Names(names)), "berth app list %s", at.operand()),
	)
}

// circuitsOf lists what is published of an app of a kernel, "" being the main one, or of all of a kernel's apps, or with neither of all
// apps of all kernels.
func circuitsOf(ctx context.Context, c *api.Client, session, kernel, app string) ([]api.Circuit, error) {
	list, err := c.Circuits(ctx, frame.InKernel(session, kernel))
	if err != nil {
		return nil, err
	}
	if app == "" {
		return list, nil
	}
	var out []api.Circuit
	for _, k := range list {
		if k.App == app && (kernel != "" || ofMain(k)) {
			out = append(out, k)
		}
	}
	return out, nil
}

// ofMain reports whether a circuit leads to its session's main kernel. Managers of before that can publish no others and name none.
func ofMain(k api.Circuit) bool { return k.Kernel == "" || k.Kernel == mainKernel }

// published is circuitsOf for verbs that need one at least; the session may have ended.
func published(ctx context.Context, c *api.Client, session, kernel, app string) ([]api.Circuit, error) {
	list, err := circuitsOf(ctx, c, session, kernel, app)
	if api.IsNotFound(err) {
		if _, e := frame.RunningSession(ctx, c, session); e != nil {
			err = e
		}
	}
	if err != nil {
		return nil, err
	}
	if len(list) > 0 {
		return list, nil
	}
	at := place{api.SessionInfo{Name: session}, kernel}
	if app == "" {
		return nil, frame.Hint(fmt.Errorf("nothing of %s is published", at.text()), "berth app list %s", at.operand())
	}
	return nil, frame.Hint(fmt.Errorf("app %s of %s is not published", app, at.text()), "berth app open %s %s", at.operand(), app)
}

// complete completes a session and then the names of its apps.
func (a *verbs) complete() cobra.CompletionFunc {
	return a.CompleteSessions(func(ctx context.Context, c *api.Client, session string) []string {
		list, err := c.Apps(ctx, session)
		if err != nil {
			return nil
		}
		names := make([]string, len(list))
		for i, app := range list {
			names[i] = app.Name
		}
		return names
	})
}
