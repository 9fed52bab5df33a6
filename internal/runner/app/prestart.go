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
)

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
		return path, proc.AsUser(s.c.User, func() error { return os.MkdirAll(path, 0o755) })
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
		return s.writeFile(s.absolute(name), a.Args, appending, v)
	case "write_tempfile":
		return s.writeFile("", a.Args, false, v)
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

// writeFile writes the body, a list of lines or a text. An empty name means a new file in the directory for
// temporary files. It returns the name.
func (s *Set) writeFile(name string, args map[string]any, appending bool, v values) (string, error) {
	body, err := bodyOf(args["body"], v)
	if err != nil {
		return "", err
	}
	mode, err := modeOf(args["mode"])
	if err != nil {
		return "", err
	}
	err = proc.AsUser(s.c.User, func() error {
		var f *os.File // never waits, as for a pipe without reader
		var err error
		switch {
		case name == "":
			// Jupyter and its like read configurations by their ending.
			f, err = os.CreateTemp(s.tempDir(), "app-*.py")
		case appending:
			f, err = os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND|syscall.O_NONBLOCK, mode)
		default:
			f, err = os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|syscall.O_NONBLOCK, mode)
		}
		if err != nil {
			return err
		}
		name = f.Name()
		_, err = f.WriteString(body)
		if merr := f.Chmod(mode); err == nil {
			err = merr
		}
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		return err
	})
	return name, err
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
		log.note("%s ended with code %d: %s", argv[0], code, printable(errText[:min(len(errText), 500)]))
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
