package app

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/runner/proc"
)

// actions are what a definition may ask for before a start.
var actions = []string{"write_file", "write_tempfile", "run_command", "mkdir", "log"}

// The bounds of an action.
const (
	maxBody     = 4 << 20  // bytes of a file
	maxAnswer   = 64 << 10 // bytes of a command's output that later texts can name
	commandTime = time.Minute
	maxAside    = 64 // actions on files at a time, of all apps
)

// aside runs fn as the session's user and waits for it, or for ctx: a file system that does not answer holds up fn, and nobody else.
func (s *Set) aside(ctx context.Context, fn func() error) error {
	select {
	case s.files <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-s.files }()
		done <- proc.AsUser(s.c.User, fn)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// prepare does the actions in order as the session's user; their results become values.
func (s *Set) prepare(ctx context.Context, d Definition, env []string, v values, log *output) error {
	for i, a := range d.Prestart {
		result, err := s.act(ctx, a, env, v, log)
		if err != nil {
			return fmt.Errorf("prestart %d (%s): %w", i+1, a.Do, err)
		}
		if a.Ref != "" {
			v[a.Ref] = result
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

func (s *Set) act(ctx context.Context, a Action, env []string, v values, log *output) (any, error) {
	text := func(key string) (string, error) {
		w, err := word(a.Args[key])
		if err != nil {
			return "", fmt.Errorf("%s: %w", key, err)
		}
		return v.fill(w)
	}
	switch a.Do {
	case "mkdir":
		path, err := text("path")
		if err != nil {
			return nil, err
		}
		path = s.absolute(path)
		return path, s.aside(ctx, func() error { return os.MkdirAll(path, 0o755) })
	case "log":
		message, err := text("message")
		if err != nil {
			return nil, err
		}
		log.note("%s", printable(message))
		return "", nil
	case "write_file":
		name, err := text("filename")
		if err != nil {
			return nil, err
		}
		appending, _ := a.Args["append"].(bool)
		return s.writeFile(ctx, s.absolute(name), a.Args, appending, v)
	case "write_tempfile":
		return s.writeFile(ctx, "", a.Args, false, v)
	case "run_command":
		return s.runCommand(ctx, a.Args, env, v, log)
	}
	return nil, fmt.Errorf("%q is not known", a.Do) // ParseDefinition refused it
}

func (s *Set) absolute(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(s.c.Home, path)
}

// writeFile writes the body, a list of lines or a text, into a regular file. An empty name means a new file in the directory for
// temporary files. It returns the name.
func (s *Set) writeFile(ctx context.Context, name string, args map[string]any, appending bool, v values) (string, error) {
	body, err := bodyOf(args["body"], v)
	if err != nil {
		return "", err
	}
	mode, err := modeOf(args["mode"])
	if err != nil {
		return "", err
	}
	written := make(chan string, 1)
	err = s.aside(ctx, func() error {
		name, err := store(name, s.tempDir, body, mode, appending)
		written <- name
		return err
	})
	if err != nil {
		return "", err
	}
	return <-written, nil
}

// store writes a file as the user that the thread is. Nothing but a regular file takes the body: a pipe, socket or device may take
// it never, or take it for a command.
func store(name string, tempDir func() string, body string, mode os.FileMode, appending bool) (string, error) {
	var f *os.File
	var err error
	if name == "" {
		// Jupyter and its like read configurations by their ending.
		f, err = os.CreateTemp(tempDir(), "app-*.py")
	} else {
		// Opening may act on a device, so it is looked at before. O_NONBLOCK, and the second look, are for what was put there in between.
		if fi, serr := os.Stat(name); serr == nil && !fi.Mode().IsRegular() {
			return "", notRegular(name, fi.Mode())
		}
		flags := os.O_CREATE | os.O_WRONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY
		if appending {
			flags |= os.O_APPEND
		}
		f, err = os.OpenFile(name, flags, mode)
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !fi.Mode().IsRegular() {
		return "", notRegular(name, fi.Mode())
	}
	if !appending && fi.Size() > 0 {
		if err := f.Truncate(0); err != nil {
			return "", err
		}
	}
	_, err = f.WriteString(body)
	if merr := f.Chmod(mode); err == nil {
		err = merr
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return f.Name(), err
}

func notRegular(name string, mode os.FileMode) error {
	kind := "a device"
	switch {
	case mode.IsDir():
		kind = "a directory"
	case mode&os.ModeNamedPipe != 0:
		kind = "a pipe"
	case mode&os.ModeSocket != 0:
		kind = "a socket"
	}
	return fmt.Errorf("%s is %s, not a file: name another file, or remove it", name, kind)
}

// tempDir is a directory for temporary files that is there: images may lack /tmp.
func (s *Set) tempDir() string {
	for _, d := range []string{"/tmp", s.c.Home} {
		if fi, err := os.Stat(d); err == nil && fi.IsDir() {
			return d
		}
	}
	return "/"
}

// bodyOf joins lines; every line ends, whether the definition says so or not.
func bodyOf(v any, vars values) (string, error) {
	if v == nil {
		return "", nil
	}
	lines, err := words(v)
	if err != nil {
		return "", fmt.Errorf("body: %w", err)
	}
	var b strings.Builder
	for _, l := range lines {
		l, err := vars.fill(l)
		if err != nil {
			return "", fmt.Errorf("body: %w", err)
		}
		b.WriteString(l)
		if !strings.HasSuffix(l, "\n") {
			b.WriteByte('\n')
		}
		if b.Len() > maxBody {
			return "", fmt.Errorf("body has more than %d bytes", maxBody)
		}
	}
	return b.String(), nil
}

// modeOf reads permissions in octal; none means 0644.
func modeOf(v any) (os.FileMode, error) {
	if v == nil {
		return 0o644, nil
	}
	w, err := word(v)
	if err != nil {
		return 0, fmt.Errorf("mode: %w", err)
	}
	n, err := strconv.ParseUint(w, 8, 32)
	if err != nil || n > 0o777 {
		return 0, fmt.Errorf("mode: %q is not like 644", w)
	}
	return os.FileMode(n), nil
}

// runCommand runs a command to its end and returns what it wrote. A command that fails is noted in the log, and the start goes on.
func (s *Set) runCommand(ctx context.Context, args map[string]any, env []string, v values, log *output) (any, error) {
	var d Definition
	if line, ok := args["command"].(string); ok {
		d.Line = line
	} else {
		argv, err := words(args["command"])
		if err != nil {
			return nil, fmt.Errorf("command: %w", err)
		}
		d.Command = argv
	}
	file, argv, err := s.command(d, nil, v, env)
	if err != nil {
		return nil, err
	}
	echo, _ := args["echo"].(bool)
	var mu sync.Mutex
	streams := make([]strings.Builder, 2)
	p, drains, err := s.spawn(file, argv, env, func(stream int, b []byte) {
		mu.Lock()
		defer mu.Unlock()
		if room := maxAnswer - streams[stream].Len(); room > 0 {
			streams[stream].Write(b[:min(room, len(b))])
		}
		if echo {
			log.write(b)
		}
	})
	if err != nil {
		return nil, err
	}
	t := time.NewTimer(commandTime)
	defer t.Stop()
	select {
	case <-p.Done():
	case <-t.C:
		p.End(time.Second)
		err = fmt.Errorf("%s did not end within %s", argv[0], commandTime)
	case <-ctx.Done():
		p.End(time.Second)
		err = ctx.Err()
	}
	for _, dr := range drains {
		dr.Settle(func([]byte) {})
	}
	if err != nil {
		return nil, err
	}
	mu.Lock()
	defer mu.Unlock()
	out, errText := streams[0].String(), streams[1].String()
	if code := p.Status().Code; code != 0 {
		log.note("%s ended with code %d: %s", shown(argv[:1]), code, printable(errText[:min(len(errText), 500)]))
	}
	return map[string]string{"out": out, "err": errText}, nil
}

// spawn starts a process as the session's user whose output goes to sink; stream is 0 for standard output, 1 for errors.
func (s *Set) spawn(file string, argv, env []string, sink func(stream int, b []byte)) (*proc.Process, []*proc.Drain, error) {
	in, err := proc.NoInput()
	if err != nil {
		return nil, nil, err
	}
	defer in.Close()
	files := []*os.File{in}
	var drains []*proc.Drain
	for stream := range 2 {
		d, w, err := proc.Pipe(func(b []byte) { sink(stream, b) })
		if err != nil {
			return nil, nil, err
		}
		defer w.Close()
		files = append(files, w)
		drains = append(drains, d)
	}
	p, err := s.c.Table.Start(proc.Spec{Path: file, Argv: argv, Env: env, Dir: s.workDir(), User: s.c.User, Files: files})
	if err != nil {
		return nil, nil, err
	}
	return p, drains, nil
}

// workDir is where apps start: the configured directory, or the root when it is gone.
func (s *Set) workDir() string {
	if fi, err := os.Stat(s.c.Dir); err == nil && fi.IsDir() {
		return s.c.Dir
	}
	return "/"
}
