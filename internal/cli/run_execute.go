package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/follow"
	"berth.dev/berth/internal/cli/frame"
)

// execute runs the cell or the files and returns the exit code of the program.
func (o *runOptions) execute(ctx context.Context, cmd *cobra.Command, c *api.Client, id string, signals <-chan os.Signal) (int, error) {
	e := api.Execute{Mode: api.ModeQuery, Code: o.code}
	if len(o.files) > 0 {
		e = api.Execute{Mode: api.ModeBatch, Batch: fileCommands(uploadName(o.files[0]), o.argv)}
	}
	stream, runID, err := follow.Execute(ctx, c, id, e, o.app.Outage(cmd.ErrOrStderr()))
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	ended := false
	defer func() {
		if !ended && !o.transient() { // the session stays, and the code would go on in it
			o.leave(ctx, c, id, runID)
		}
	}()
	out := &printer{out: cmd.OutOrStdout(), err: cmd.ErrOrStderr(), dir: o.media, quiet: o.quiet}
	in := newInput(cmd.InOrStdin(), cmd.ErrOrStderr())
	defer in.restore()
	interrupted := false
	for {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-signals:
			if interrupted {
				return 0, frame.ErrInterrupted
			}
			interrupted = true
			if err := c.InterruptSession(ctx, id); err != nil {
				return 0, fmt.Errorf("interrupt session %s: %w", id, err)
			}
		case line := <-in.lines:
			if line.err != nil {
				return 0, fmt.Errorf("read standard input: %w", line.err)
			}
			if err := stream.SendInput(ctx, line.text); err != nil {
				return 0, err
			}
		case r, ok := <-stream.Results():
			if !ok {
				if err := stream.Err(); err != nil {
					return 0, frame.Hint(err, "berth session logs %s", id)
				}
				return 0, errors.New("the manager closed the stream before the program ended")
			}
			if err := out.write(r.Console); err != nil {
				return 0, err
			}
			switch r.Status {
			case api.ExecFinished:
				ended = true
				if frame.IsTerminal(out.out) {
					if err := out.end(); err != nil {
						return 0, fmt.Errorf("write output: %w", err)
					}
				}
				return frame.Deref(r.ExitCode), nil
			case api.ExecWaitingInput:
				in.request(r.Options != nil && r.Options.IsPassword)
			case api.ExecTimeout:
				return 0, frame.Hint(
					fmt.Errorf("the code in session %s ran into the time limit of the manager: %w", id, frame.ErrTimeout),
					"berth run --batch (has no such limit)",
				)
			case api.ExecError, api.ExecRestarting:
				return 0, frame.Hint(fmt.Errorf("the execution in session %s broke: %s", id, r.Msg), "berth session info %s", id)
			}
		}
	}
}

// leave interrupts code whose output nobody waits for any more. When that fails, the session does it later by itself.
func (o *runOptions) leave(ctx context.Context, c *api.Client, session, runID string) {
	ctx, cancel := frame.Within(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	_ = c.InterruptRun(ctx, session, runID)
}

// fileCommands says how to build and run a main file, by its extension. Files of
// languages that are compiled are left to the image's own way.
func fileCommands(name string, argv []string) *api.BatchCommands {
	star := "*"
	interpreter := map[string]string{
		".py": "python3", ".sh": "sh", ".bash": "bash", ".js": "node", ".mjs": "node", ".r": "Rscript",
		".jl": "julia", ".rb": "ruby", ".pl": "perl", ".lua": "lua", ".php": "php",
	}[strings.ToLower(path.Ext(name))]
	if interpreter == "" {
		return &api.BatchCommands{Build: &star, BuildLog: true, Exec: &star}
	}
	words := []string{interpreter, shellQuote(name)}
	for _, arg := range argv {
		words = append(words, shellQuote(arg))
	}
	line := strings.Join(words, " ")
	return &api.BatchCommands{Exec: &line}
}

// shellQuote makes one word of a POSIX shell command line.
func shellQuote(s string) string {
	plain := "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+=:,@%"
	if s != "" && strings.Trim(s, plain) == "" && !strings.HasPrefix(s, "-") {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
