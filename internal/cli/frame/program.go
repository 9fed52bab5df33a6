package frame

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"berth.dev/berth/api"
)

// Programs are the other programs of this machine.
type Programs interface {
	// LookPath finds a program.
	LookPath(name string) (string, error)
	// Start starts a program and leaves it alone.
	Start(name string, args ...string) error
	// Run runs a program with these streams and returns its exit code.
	Run(ctx context.Context, in io.Reader, out, err io.Writer, name string, args ...string) (int, error)
}

type osPrograms struct{}

func (osPrograms) LookPath(name string) (string, error) { return exec.LookPath(name) }

func (osPrograms) Start(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// Run leaves signals of the terminal to the program: they reach it directly.
func (osPrograms) Run(ctx context.Context, in io.Reader, out, errs io.Writer, name string, args ...string) (int, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, errs
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended) && ended.ExitCode() >= 0:
		return ended.ExitCode(), nil
	case errors.As(err, &ended):
		return ExitInterrupted, nil // by a signal
	}
	return 0, err
}

// Browse opens an address in the browser of the desktop. It reports false where there is no desktop.
func (a *Frame) Browse(address string) bool {
	var argv []string
	switch {
	case runtime.GOOS == "darwin":
		argv = []string{"open", address}
	case runtime.GOOS == "windows":
		argv = []string{"rundll32", "url.dll,FileProtocolHandler", address}
	case a.Getenv("DISPLAY") != "" || a.Getenv("WAYLAND_DISPLAY") != "":
		argv = []string{"xdg-open", address}
	default:
		return false
	}
	path, err := a.Programs.LookPath(argv[0])
	return err == nil && a.Programs.Start(path, argv[1:]...) == nil
}

// CacheDir makes a private directory for what can be had again; "" where there is no place for it.
func (a *Frame) CacheDir(elem ...string) (string, error) {
	cache := a.Getenv("XDG_CACHE_HOME")
	if home := a.Getenv("HOME"); cache == "" && home != "" {
		cache = filepath.Join(home, ".cache")
	}
	if cache == "" {
		return "", Hint(errors.New("there is no cache directory"), "set HOME or XDG_CACHE_HOME")
	}
	dir := filepath.Join(append([]string{cache, "berth"}, elem...)...)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return dir, nil
}

// SelfFlags are the flags that make another berth find the same cluster from any directory.
func (a *Frame) SelfFlags() []string {
	var flags []string
	if a.stateDir != "" {
		dir, err := filepath.Abs(a.stateDir)
		if err != nil {
			dir = a.stateDir
		}
		flags = append(flags, "--state-dir", dir)
	}
	if a.endpoint != "" {
		flags = append(flags, "--endpoint", a.endpoint)
	}
	// What is started later must not follow the user to another profile.
	if cfg, err := api.LoadConfig(a.lookup()); err == nil && cfg.Profile != "" {
		flags = append(flags, "--profile", cfg.Profile)
	}
	return flags
}
