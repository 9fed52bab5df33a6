package httpapi

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/httpapi/params"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/wire/run"
)

const (
	// collectFor is how long one polling call gathers output before it answers "continued".
	collectFor = 2 * time.Second
	// streamFlush is the same for streams, streamWait how long one of their steps waits for anything.
	streamFlush = 200 * time.Millisecond
	streamWait  = 20 * time.Second
	// restartPatience is how long a restart holds its request.
	restartPatience = 2 * time.Minute
	// goneExit is the exit code of a run whose container went away.
	goneExit = 130
)

// runner opens the way to the runner of a session's main kernel.
func (a *API) runner(ctx context.Context, actor authz.Actor, ref string, who cluster.AccessKey) (*run.Client, *session.Runner, error) {
	way, err := a.sessions.Runner(ctx, actor, ref, who)
	if err != nil {
		return nil, nil, err
	}
	return run.NewClient(run.Options{Transport: way}), way, nil
}

func newRunID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// execResult is one answer of the execute protocol. Console and Files are never null, because the command line
// iterates over them.
func execResult(status run.Status, exitCode *int) api.ExecuteResult {
	return api.ExecuteResult{Status: string(status), ExitCode: exitCode, Files: []string{}, Console: []api.ConsoleItem{}}
}

func execResultOf(r run.StepResult) api.ExecuteResult {
	out := execResult(r.Status, r.ExitCode)
	if r.Options != nil {
		out.Options = &api.InputOptions{IsPassword: r.Options.IsPassword}
	}
	for _, item := range r.Console {
		if item.Type == run.Media {
			out.Console = append(out.Console, api.ConsoleMedia(item.Mime, item.Data))
			continue
		}
		out.Console = append(out.Console, api.ConsoleText(string(item.Type), item.Data))
	}
	return out
}

// execute is the polling form of the execute protocol.
func (a *API) execute(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	mode, code, runID := p.Text("mode", "query"), p.Text("code", ""), p.Text("runId|run_id", "")
	options := p.Object("options")
	req := run.StepRequest{Mode: run.Mode(mode), Code: code, WaitMS: int(collectFor.Milliseconds())}
	if req.Mode == run.ModeInput && code == api.InputEOF {
		req.Code, req.EOF = "", true
	}
	switch req.Mode {
	case run.ModeQuery:
	case run.ModeBatch:
		req.Options = batchOptions(options)
	case run.ModeInput, run.ModeContinue:
		if runID == "" {
			p.Fail("runId", "is required for mode %s", mode)
		}
	case "complete":
	default:
		p.Fail("mode", "must be query, batch, input, continue or complete")
	}
	if len(runID) > run.MaxRunID {
		p.Fail("runId", "is longer than %d characters", run.MaxRunID)
	}
	at := completeOptions(options)
	if err := p.Err(); err != nil {
		return err
	}
	if runID == "" {
		runID = newRunID()
	}
	gone := api.ExecuteReply{Result: execResult(run.StatusFinished, new(goneExit))}
	gone.Result.RunID = runID
	goingOn := req.Mode == run.ModeInput || req.Mode == run.ModeContinue
	client, _, err := a.runner(c.ctx(), c.actor, ref, who)
	if err != nil {
		if goingOn && fault.Is(err, fault.Conflict) {
			return c.ok(gone)
		}
		return err
	}
	if mode == "complete" {
		done, err := client.Complete(c.ctx(), run.CompleteRequest{Code: code, Options: at})
		if err != nil {
			return err
		}
		return c.ok(
			api.CompletionReply{Result: api.Completion{Status: string(run.StatusFinished), Completions: done.Completions, RunID: runID}},
		)
	}
	step, err := client.Step(c.ctx(), runID, req)
	if err != nil {
		if goingOn && a.ended(c, ref, who) {
			return c.ok(gone)
		}
		return err
	}
	result := execResultOf(step)
	result.RunID = runID
	return c.ok(api.ExecuteReply{Result: result})
}

// ended reports whether the session is over.
func (a *API) ended(c *call, ref string, who cluster.AccessKey) bool {
	s, err := a.sessions.Find(c.ctx(), c.actor, ref, who)
	return fault.Is(err, fault.NotFound) || err == nil && (s.Status.Final() || s.Status == cluster.Terminating)
}

func batchOptions(p *params.Set) *run.BatchOptions {
	return &run.BatchOptions{
		Clean: p.Optional("clean"), Build: p.Optional("build"), Exec: p.Optional("exec"), BuildLog: p.Flag("buildLog|build_log", false),
	}
}

func completeOptions(p *params.Set) run.CompleteOptions {
	return run.CompleteOptions{
		Row: p.Number("row", 0, 0, 1<<30), Col: p.Number("col", 0, 0, 1<<30), Line: p.Text("line", ""), Post: p.Text("post", ""),
	}
}

func (a *API) interrupt(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	runID := p.Text("runId|run_id", "")
	if err := p.Err(); err != nil {
		return err
	}
	client, _, err := a.runner(c.ctx(), c.actor, ref, who)
	if err != nil {
		return err
	}
	if _, err := client.Interrupt(c.ctx(), runID); err != nil {
		return err
	}
	return c.nothing()
}

func (a *API) complete(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	req := run.CompleteRequest{Code: p.Text("code", ""), Options: completeOptions(p.Object("options"))}
	if err := p.Err(); err != nil {
		return err
	}
	client, _, err := a.runner(c.ctx(), c.actor, ref, who)
	if err != nil {
		return err
	}
	done, err := client.Complete(c.ctx(), req)
	if err != nil {
		return err
	}
	return c.ok(api.CompletionReply{Result: api.Completion{Status: string(run.StatusFinished), Completions: notNull(done.Completions)}})
}
