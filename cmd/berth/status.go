package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/appproxy"
	"berth.dev/berth/internal/cli/frame"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/platform"
)

func newStatus() *cobra.Command {
	var dirFlag string
	var asJSON, clientEnv bool
	c := &cobra.Command{
		Use: "status", Short: "Show whether the cluster of this machine is up, and where", Args: cobra.NoArgs,
		Long: "Show whether the cluster of a state directory is up, its addresses, parts and content.\n" +
			"Exits 0 when it is ready, 1 when it runs but is not ready, 5 when it does not run.",
		Example: "  berth status\n  set -a; . \"$(berth status --client-env)\"; set +a",
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := platform.FindStateDir(dirFlag)
			if err != nil {
				return err
			}
			if clientEnv {
				fmt.Fprintln(cmd.OutOrStdout(), dir.ClientEnv())
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

func status(cmd *cobra.Command, dir platform.StateDir, asJSON bool) error {
	ctx := cmd.Context()
	r, err := dir.Status(ctx)
	if err != nil {
		pid, running := dir.Owner()
		if asJSON {
			if err := printJSON(cmd, platform.Report{Running: running, Pid: pid, StateDir: string(dir)}); err != nil {
				return err
			}
			return &frame.ExitError{Code: frame.ExitUnavailable}
		}
		if running {
			return fault.Unavailablef("a process (pid %d) holds %s but does not answer", pid, dir).WithCause(err).
				WithNext("look at %s", dir.LogFile())
		}
		return fault.Unavailablef("no cluster runs in %s", dir).WithNext("berth up --detach")
	}
	content, countErr := platform.Counts{}, errors.New("the API is not up yet")
	if r.API != "" {
		content, countErr = dir.Count(ctx)
	}
	healthy := r.Healthy() && countErr == nil
	if asJSON {
		out := struct {
			platform.Report
			platform.Counts
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

func printStatus(w io.Writer, dir platform.StateDir, r platform.Report, content platform.Counts, countErr error) {
	fmt.Fprintf(w, "Berth %s  %s  pid %d  since %s\n", r.Version, r.Phase, r.Pid, r.Started.Local().Format("2006-01-02 15:04:05"))
	fmt.Fprintf(w, "  state       %s\n", dir)
	fmt.Fprintf(w, "  API         %s\n", r.API)
	fmt.Fprintf(w, "  TLS         %s\n", r.TLS)
	fmt.Fprintf(w, "  agent port  %s\n", r.Agents)
	fmt.Fprintf(w, "  storage     %s\n", r.Storage)
	for _, v := range r.Volumes {
		fmt.Fprintf(w, "  volume      %s\n", v)
	}
	if r.Web != "" {
		fmt.Fprintf(w, "  web         %s\n", r.Web)
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
		if s.OK {
			good = append(good, s.Name)
			continue
		}
		fmt.Fprintf(w, "  NOT WELL    %s is %s %s\n", s.Name, s.State, s.Error)
	}
	fmt.Fprintf(w, "  well        %s\n", strings.Join(good, ", "))
}

// appsLine is the app proxy in `berth status`.
func appsLine(s appproxy.Status) string {
	text := s.URL
	if s.Domain != "" {
		text += ", *." + s.Domain
	}
	if s.Ports != "" {
		text += ", ports " + s.Ports
	}
	text += fmt.Sprintf("; %d published, %d connections", s.Circuits, s.Connections)
	if s.Problem != "" {
		text += "  NOT WELL: " + s.Problem
	}
	return text
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
