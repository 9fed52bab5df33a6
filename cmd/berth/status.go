package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/cli/frame"
	"berth.dev/berth/internal/fault"
)

// maxAnswer bounds what is read from the control socket.
const maxAnswer = 8 << 20

// ask reads one document from the control socket of a running cluster.
func (d stateDir) ask(ctx context.Context, path string, out any) error {
	return d.call(ctx, http.MethodGet, path, out)
}

// call sends a request without a body to the control socket and reads the answer.
func (d stateDir) call(ctx context.Context, method, path string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", d.controlSocket())
		},
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://berth"+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return fault.Unavailablef("the cluster in %s does not answer", d).WithCause(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fault.Unavailablef("the cluster in %s answers: %s", d, strings.TrimSpace(string(body)))
	}
	return json.Unmarshal(body, out)
}

func (d stateDir) askStatus(ctx context.Context) (report, error) {
	var r report
	err := d.ask(ctx, "/status", &r)
	return r, err
}

// counts are what the API says about the cluster's content.
type counts struct {
	Agents   map[string]int `json:"agents"`
	Sessions map[string]int `json:"sessions"`
}

func (d stateDir) count(ctx context.Context) (counts, error) {
	client, err := d.client()
	if err != nil {
		return counts{}, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c := counts{Agents: map[string]int{}, Sessions: map[string]int{}}
	for _, status := range []string{"ALIVE", "LOST"} {
		agents, err := client.Agents(ctx, status)
		if err != nil {
			return counts{}, err
		}
		if len(agents) > 0 {
			c.Agents[status] = len(agents)
		}
	}
	sessions, err := client.Sessions(ctx, allLive())
	if err != nil {
		return counts{}, err
	}
	for _, s := range sessions {
		c.Sessions[s.Status]++
	}
	return c, nil
}

func newStatus() *cobra.Command {
	var dirFlag string
	var asJSON, clientEnv bool
	c := &cobra.Command{
		Use: "status", Short: "Show whether the cluster of this machine is up, and where", Args: cobra.NoArgs,
		Long: "Show whether the cluster of a state directory is up, its addresses, parts and content.\n" +
			"Exits 0 when it is ready, 1 when it runs but is not ready, 5 when it does not run.",
		Example: "  berth status\n  set -a; . \"$(berth status --client-env)\"; set +a",
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := findStateDir(dirFlag)
			if err != nil {
				return err
			}
			if clientEnv {
				fmt.Fprintln(cmd.OutOrStdout(), dir.clientEnv())
				return nil
			}
			return status(cmd, dir, asJSON)
		},
	}
	c.Flags().StringVar(&dirFlag, "state-dir", "", "directory of the cluster")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON for programs")
	c.Flags().BoolVar(&clientEnv, "client-env", false, "print the path of client.env and nothing else")
	return c
}

func status(cmd *cobra.Command, dir stateDir, asJSON bool) error {
	ctx := cmd.Context()
	r, err := dir.askStatus(ctx)
	if err != nil {
		pid, running := dir.owner()
		if asJSON {
			if err := printJSON(cmd, report{Running: running, Pid: pid, StateDir: string(dir)}); err != nil {
				return err
			}
			return &frame.ExitError{Code: frame.ExitUnavailable}
		}
		if running {
			return fault.Unavailablef("a process (pid %d) holds %s but does not answer", pid, dir).WithCause(err).
				WithNext("look at %s", dir.logFile())
		}
		return fault.Unavailablef("no cluster runs in %s", dir).WithNext("berth up --detach")
	}
	content, countErr := counts{}, errors.New("the API is not up yet")
	if r.API != "" {
		content, countErr = dir.count(ctx)
	}
	healthy := r.Ready && !slices.ContainsFunc(r.Services, notOK) && !slices.ContainsFunc(r.Volumes, volumeLine.sick) && (r.Apps == nil || r.Apps.Problem == "") && countErr == nil
	if asJSON {
		out := struct {
			report
			counts
			Healthy bool `json:"healthy"`
		}{r, content, healthy}
		if err := printJSON(cmd, out); err != nil {
			return err
		}
	} else {
		printStatus(cmd.OutOrStdout(), dir, r, content, countErr)
	}
	if !healthy {
		return &frame.ExitError{Code: frame.ExitFailure}
	}
	return nil
}

func printStatus(w io.Writer, dir stateDir, r report, content counts, countErr error) {
	fmt.Fprintf(w, "Berth %s  %s  pid %d  since %s\n", r.Version, r.Phase, r.Pid, r.Started.Local().Format("2006-01-02 15:04:05"))
	fmt.Fprintf(w, "  state       %s\n", dir)
	fmt.Fprintf(w, "  API         %s\n", r.API)
	fmt.Fprintf(w, "  agent port  %s\n", r.Agents)
	fmt.Fprintf(w, "  storage     %s\n", r.Storage)
	for _, v := range r.Volumes {
		fmt.Fprintf(w, "  volume      %s\n", v)
	}
	if r.Apps != nil {
		fmt.Fprintf(w, "  apps        %s\n", appsLine(*r.Apps))
	}
	for _, k := range []string{"postgresql", "etcd", "redis"} {
		if v := r.Backends[k]; v != "" {
			fmt.Fprintf(w, "  %-11s %s\n", k, v)
		}
	}
	if countErr != nil {
		fmt.Fprintf(w, "  content     unknown: %v\n", countErr)
	} else {
		fmt.Fprintf(w, "  agents      %s\n  sessions    %s\n", tally(content.Agents), tally(content.Sessions))
	}
	var good []string
	for _, s := range r.Services {
		if !notOK(s) {
			good = append(good, s.Name)
			continue
		}
		fmt.Fprintf(w, "  NOT WELL    %s is %s %s\n", s.Name, s.State, s.Error)
	}
	fmt.Fprintf(w, "  well        %s\n", strings.Join(good, ", "))
}

func tally(m map[string]int) string {
	var parts []string
	for k, n := range m {
		parts = append(parts, fmt.Sprintf("%d %s", n, k))
	}
	if len(parts) == 0 {
		return "none"
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func printJSON(cmd *cobra.Command, v any) error {
	e := json.NewEncoder(cmd.OutOrStdout())
	e.SetIndent("", "  ")
	return e.Encode(v)
}
