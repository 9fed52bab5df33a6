package runner

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/runner/recipe"
	"berth.dev/berth/internal/wire/run"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// userEnv is what commands of the session see: the image's own environment, then ours, then what
// the session asked for. Whatever an image sets (LD_PRELOAD, VIRTUAL_ENV) reaches its programs only:
// the runner is static and reads no environment.
func userEnv(image []string, cfg run.Config, shell string) []string {
	env := map[string]string{}
	for _, kv := range image {
		if k, v, ok := strings.Cut(kv, "="); ok {
			env[k] = v
		}
	}
	set := func(k, v string) { env[k] = v }
	fill := func(k, v string) {
		if env[k] == "" {
			env[k] = v
		}
	}
	set("HOME", cfg.User.Home)
	set("USER", cfg.User.Name)
	set("LOGNAME", cfg.User.Name)
	set("LANG", "C.UTF-8")
	fill("TERM", "xterm")
	if shell != "" {
		fill("SHELL", shell)
	}
	for k, v := range cfg.Env {
		set(k, v)
	}
	fill("PATH", defaultPath)
	local := filepath.Join(cfg.User.Home, ".local/bin")
	if !slices.Contains(filepath.SplitList(env["PATH"]), local) {
		set("PATH", local+":"+env["PATH"])
	}
	out := make([]string, 0, len(env))
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}

// with returns env with more variables; later ones win.
func with(env []string, more ...string) []string {
	return append(slices.Clone(env), more...)
}

// findShell returns the shell for terminals, or "" when the image has none.
func findShell(given string) string {
	for _, sh := range []string{given, os.Getenv("SHELL"), "/bin/bash", "/usr/bin/bash", "/bin/zsh", "/bin/ash", "/bin/sh"} {
		if !filepath.IsAbs(sh) {
			continue
		}
		if file, ok := recipe.LookPath(sh, nil); ok {
			return file
		}
	}
	return ""
}

// credential is who commands run as; nil when the runner cannot change who it is.
func credential(u run.User) *proc.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	return &proc.Credential{UID: u.UID, GID: u.GID, Groups: u.Groups}
}
