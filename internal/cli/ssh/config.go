package ssh

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
	"berth.dev/berth/internal/durable"
)

const (
	// configFile is ours in ~/.ssh; the user's own names it in an Include line.
	configFile = "berth_config"
	// maxEntries bounds the sessions of one configuration.
	maxEntries = 1000
	// maxUserConfig bounds the user's own configuration in bytes.
	maxUserConfig = 4 << 20
)

type configOptions struct {
	*verbs
	write   bool
	include bool
}

func (a *verbs) newConfig() *cobra.Command {
	o := &configOptions{verbs: a}
	cmd := &cobra.Command{
		Use:   "ssh-config",
		Short: "Make plain ssh, scp, rsync and editors know every running session",
		Long: `Print a configuration by which plain ssh, scp, sftp, rsync, VS Code and JetBrains know every running session of yours as
NAME.berth, and the kernels of sessions with several as sub1.NAME.berth. With --write it goes into ~/.ssh/berth_config,
replacing what an earlier one wrote; sessions that start afterwards need another one.`,
		Example: `  berth ssh-config --write --include
  scp -r results mylab.berth:/home/work/
  rsync -e ssh -a data/ mylab.berth:data/`,
		Args: frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.write, "write", "w", false, "write ~/.ssh/berth_config instead of printing")
	f.BoolVar(&o.include, "include", false, "with --write: add the Include line to ~/.ssh/config without asking")
	return cmd
}

func (o *configOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	if o.include && !o.write {
		return frame.Usage(frame.Hint(errors.New("--include goes with --write"), "berth ssh-config --write --include"))
	}
	entries, err := o.entries(ctx, cmd, c)
	if err != nil {
		return err
	}
	text := render(c.Config(), entries)
	if !o.write {
		_, err := cmd.OutOrStdout().Write(text)
		return err
	}
	dir, err := o.sshDir()
	if err != nil {
		return err
	}
	path := filepath.Join(dir, configFile)
	if err := durable.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if cache, err := o.CacheDir("ssh"); err == nil {
		forgetOld(cache, entries, o.Now())
	}
	sessions := 0
	for _, e := range entries {
		if e.kernel == "" {
			sessions++
		}
	}
	frame.Say(cmd, "%s knows %s", path, frame.Count(sessions, "session"))
	return o.offerInclude(cmd, dir)
}

// entries are those of the caller's running sessions, by name.
func (o *configOptions) entries(ctx context.Context, cmd *cobra.Command, c *api.Client) ([]entry, error) {
	list, err := c.Sessions(ctx, api.SessionFilter{Statuses: []string{api.StatusRunning}})
	if err != nil {
		return nil, err
	}
	own := c.Config().AccessKey
	list = slices.DeleteFunc(list, func(s api.Session) bool { return s.AccessKey != "" && s.AccessKey != own })
	slices.SortFunc(list, func(a, b api.Session) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	if len(list) > maxEntries {
		frame.Say(cmd, "only the first %d of %d sessions are named", maxEntries, len(list))
		list = list[:maxEntries]
	}
	var out []entry
	seen := map[string]bool{}
	for _, s := range list {
		e, err := o.entry(api.SessionInfo{ID: s.ID, Name: s.Name}, "")
		if err != nil {
			frame.Say(cmd, "left out: %v", err)
			continue
		}
		if !seen[e.host] {
			seen[e.host], out = true, append(out, e)
		}
	}
	return o.withKernels(cmd, list, out, seen)
}

// withKernels adds the kernels of sessions with several, whose names follow from their number. A session's own name comes first.
func (o *configOptions) withKernels(cmd *cobra.Command, list []api.Session, out []entry, seen map[string]bool) ([]entry, error) {
	for _, s := range list {
		for i := range s.ClusterSize {
			kernel := fmt.Sprintf("sub%d", i)
			if i == 0 {
				if s.ClusterSize == 1 {
					break
				}
				kernel = "main1"
			}
			if len(out) >= maxEntries {
				frame.Say(cmd, "only the first %d sessions and kernels are named", maxEntries)
				return out, nil
			}
			e, err := o.entry(api.SessionInfo{ID: s.ID, Name: s.Name}, kernel)
			if err != nil { // said already
				break
			}
			if !seen[e.host] {
				seen[e.host], out = true, append(out, e)
			}
		}
	}
	return out, nil
}

// render writes the configuration. Keys that are not here yet are fetched by the first connection.
func render(cfg api.Config, entries []entry) []byte {
	var b bytes.Buffer
	fmt.Fprintf(
		&b, "# Sessions at %s, written by berth ssh-config, which replaces this file as a whole.\n", strings.Map(printable, cfg.Endpoint),
	)
	for _, e := range entries {
		fmt.Fprintf(&b, "\nHost %s\n", e.host)
		for _, s := range e.settings() {
			fmt.Fprintf(&b, "    %s %s\n", s[0], s[1])
		}
	}
	return b.Bytes()
}

func printable(r rune) rune {
	if r < ' ' || r == 0x7f {
		return -1
	}
	return r
}

// sshDir is the user's directory of SSH, made when it is missing.
func (a *verbs) sshDir() (string, error) {
	home := a.Getenv("HOME")
	if home == "" {
		return "", frame.Hint(errors.New("there is no home directory"), "set HOME")
	}
	dir := filepath.Join(home, ".ssh")
	return dir, os.MkdirAll(dir, 0o700)
}

const includeLine = "Include " + configFile

// offerInclude makes the user's configuration name ours, when the user wants that.
func (o *configOptions) offerInclude(cmd *cobra.Command, dir string) error {
	path := filepath.Join(dir, "config")
	old, mode, err := readConfig(path)
	if err != nil {
		return err
	}
	if includes(old, dir) {
		return nil
	}
	if !o.include {
		if !frame.IsTerminal(cmd.InOrStdin()) || !frame.IsTerminal(cmd.ErrOrStderr()) {
			frame.Say(cmd, "put this line first in %s, or run berth ssh-config --write --include:\n%s", path, includeLine)
			return nil
		}
		if frame.Confirm(cmd, false, "Put \""+includeLine+"\" into "+path+"?") != nil {
			frame.Say(cmd, "ssh -F %s knows the sessions meanwhile", filepath.Join(dir, configFile))
			return nil
		}
	}
	// An Include below a Host line would belong to that host: ours comes first.
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if err := durable.WriteFile(path, append([]byte(includeLine+"\n\n"), old...), mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	frame.Say(cmd, "%s includes it", path)
	return nil
}

func readConfig(path string) ([]byte, os.FileMode, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0o600, nil
	}
	if err != nil {
		return nil, 0, err
	}
	if info.Size() > maxUserConfig {
		return nil, 0, fmt.Errorf("%s is larger than %d MiB", path, maxUserConfig>>20)
	}
	text, err := os.ReadFile(path)
	return text, info.Mode().Perm(), err
}

// includes reports whether a configuration names ours before its first Host or Match.
func includes(config []byte, dir string) bool {
	s := bufio.NewScanner(bytes.NewReader(config))
	for s.Scan() {
		words := strings.Fields(strings.Replace(s.Text(), "=", " ", 1))
		if len(words) == 0 {
			continue
		}
		switch strings.ToLower(words[0]) {
		case "host", "match":
			return false
		case "include":
			for _, w := range words[1:] {
				switch strings.Trim(w, `"`) {
				case configFile, "~/.ssh/" + configFile, filepath.Join(dir, configFile):
					return true
				}
			}
		}
	}
	return false
}

// configured makes sure that the user's SSH knows a session, for editors that bring no configuration of their own.
func (a *verbs) configured(ctx context.Context, cmd *cobra.Command, c *api.Client, host string) error {
	dir, err := a.sshDir()
	if err != nil {
		return err
	}
	o := &configOptions{verbs: a}
	entries, err := o.entries(ctx, cmd, c)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(entries, func(e entry) bool { return e.host == host })
	if i < 0 {
		return frame.Hint(fmt.Errorf("%s is not among your running sessions", host), "berth ssh-config lists them")
	}
	if _, err := entries[i].ensureKey(ctx, c, time.Time{}); err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(dir, configFile), render(c.Config(), entries), 0o600); err != nil {
		return err
	}
	return o.offerInclude(cmd, dir)
}
