package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/follow"
	"berth.dev/berth/internal/cli/frame"
)

// runOptions are the flags and arguments of berth run.
type runOptions struct {
	createFlags
	app   *verbs
	code  string
	rm    bool
	keep  bool
	media string

	image string
	files []string
	argv  []string // after --
}

func (a *verbs) newRun() *cobra.Command {
	o := &runOptions{app: a}
	cmd := &cobra.Command{
		Use:   "run IMAGE [FILE...] [-- ARG...]",
		Short: "Run code, files or a batch command in a session",
		Long: `Run code in a session and pass its output and exit code through.

With -c the code runs as one cell of the image's interpreter. With FILEs they are
uploaded and the first one is run, with the ARGs after --. With --batch the command
becomes a batch session, whose log is followed to its end.

Standard input goes to the program when it asks for input.

A session without --name is removed at the end; --keep leaves it. A session with
--name stays, and is used again when it lives already; --rm removes it.
Ctrl-C interrupts the code; a second Ctrl-C leaves, and ends a session without a name.`,
		Example: `  berth run python -c 'print(6*7)'
  echo Ada | berth run python -c 'print("hi", input())'
  berth run python train.py data.csv -r cpu=2 -r mem=2g -- --epochs 3
  berth run python train.py -v data:/home/work/data:ro -v results
  berth run python --batch 'python3 -m timeit 1+1' --timeout 10m`,
		Args: frame.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.parse(cmd, args); err != nil {
				return err
			}
			c, err := a.Client()
			if err != nil {
				return err
			}
			defer c.Close()
			return o.run(cmd, c)
		},
	}
	o.add(cmd)
	f := cmd.Flags()
	f.StringVarP(&o.code, "code", "c", "", "code to run")
	f.BoolVar(&o.rm, "rm", false, "remove the session at the end, also when it has a --name")
	f.BoolVar(&o.keep, "keep", false, "leave the session running at the end")
	f.StringVar(&o.media, "save-media", "", "directory to save pictures and other rich output to")
	_ = cmd.MarkFlagDirname("save-media")
	cmd.MarkFlagsMutuallyExclusive("code", "batch")
	cmd.MarkFlagsMutuallyExclusive("rm", "keep")
	return cmd
}

// parse checks what cobra cannot.
func (o *runOptions) parse(cmd *cobra.Command, args []string) error {
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		args, o.argv = args[:dash], args[dash:]
	}
	if len(args) == 0 {
		return frame.Usage(frame.Hint(errors.New("no image is named"), "berth image list"))
	}
	o.image, o.files = args[0], args[1:]
	code := cmd.Flags().Changed("code")
	switch {
	case code && len(o.files) > 0:
		return frame.Usage(frame.Hint(errors.New("-c and files do not go together"), "berth run --help"))
	case o.batch != "" && len(o.files) > 0:
		return frame.Usage(
			frame.Hint(
				errors.New("--batch starts before files could be uploaded"), "bring the files with --bootstrap, or berth run %s FILE",
				o.image,
			),
		)
	case !code && o.batch == "" && len(o.files) == 0 && !o.dryRun:
		return frame.Usage(
			frame.Hint(errors.New("there is nothing to run"), "berth run %s -c CODE, or berth run %s FILE", o.image, o.image),
		)
	}
	return nil
}

// transient reports whether the session goes away at the end.
func (o *runOptions) transient() bool { return o.rm || o.name == "" && !o.keep }

const (
	// removeTimeout bounds the removal of the session at the end.
	removeTimeout = 30 * time.Second
	// leaveTimeout bounds the interruption of code that is left.
	leaveTimeout = 5 * time.Second
	// leaseLength is how long a session that goes away at the end outlives a client that is gone without a word.
	leaseLength = api.ResumeWithin
	leaseRenew  = 30 * time.Second
)

func (o *runOptions) run(cmd *cobra.Command, c *api.Client) (err error) {
	signals, stop := o.app.Interrupts()
	defer stop()
	// Ctrl-C has a meaning of its own here, so that a context that ends with it would
	// keep us from removing the session.
	base := context.WithoutCancel(cmd.Context())
	ctx, cancel := frame.Within(base, o.timeout)
	defer cancel()

	req, err := o.request(ctx, o.app, c, o.image)
	if err != nil {
		return err
	}
	var uploads []api.Upload
	if len(o.files) > 0 {
		if uploads, err = collectUploads(o.files); err != nil {
			return err
		}
	}
	if req.Name == "" {
		req.Name = randomName("run")
	}
	if o.batch != "" {
		req.ReuseIfExists = false
	}
	if o.dryRun {
		return o.plan(ctx, o.app, cmd, c, req, false)
	}
	p := &frame.Progress{Out: cmd.ErrOrStderr(), Name: req.Name, TTY: frame.IsTerminal(cmd.ErrOrStderr()), Quiet: o.quiet}
	if o.transient() && o.batch == "" { // a batch session ends by itself, and its result is worth keeping
		req.LeaseSeconds = int(leaseLength / time.Second)
	}
	created, err := o.create(ctx, cmd, c, req)
	if err != nil {
		if ctx.Err() != nil && o.transient() { // it may have been made all the same
			o.remove(base, cmd, c, api.CreatedSession{ID: req.Name, Name: req.Name}, false)
		}
		return o.hint(err)
	}
	running, gone := false, false
	defer func() {
		if o.transient() && !gone {
			o.remove(base, cmd, c, created, running)
		}
	}()

	if req.LeaseSeconds > 0 && created.Created {
		defer holdLease(ctx, c, created.ID)()
	}
	starting, stopStarting := frame.UntilSignal(ctx, signals)
	info, err := o.app.Watch(starting, c, created.ID, frame.GoalRunning, p)
	stopStarting()
	if err != nil {
		return err
	}
	running = info.Status == api.StatusRunning
	if o.batch != "" {
		if info, err = o.followBatch(ctx, cmd, c, created.ID, signals); err != nil {
			return err
		}
		gone = true // Batch sessions end by themselves.
		return batchExit(created.ID, info)
	}
	if len(uploads) > 0 {
		if err := c.UploadFiles(ctx, created.ID, uploads); err != nil {
			return err
		}
	}
	code, err := o.execute(ctx, cmd, c, created.ID, signals)
	if err != nil {
		return err
	}
	if !o.transient() && !o.quiet && o.name == "" {
		frame.Say(cmd, "session %s goes on; berth session rm %s ends it", created.Name, created.Name)
	}
	return frame.ExitWith(code)
}

// create makes the session. When the answer is lost, what became of the request is found out before it is made again: a name of our own
// tells its session from all others.
func (o *runOptions) create(ctx context.Context, cmd *cobra.Command, c *api.Client, req api.CreateSession) (api.CreatedSession, error) {
	created, err := c.CreateSession(ctx, req)
	if err == nil || o.name != "" || !follow.Passing(err) || follow.Unreachable(err) {
		return created, err
	}
	all := slices.Concat(api.LiveStatuses, api.EndedStatuses)
	outage := o.app.Outage(cmd.ErrOrStderr())
	for {
		if err := outage.Wait(ctx, err); err != nil {
			return created, err
		}
		var found []api.Session
		if found, err = c.Sessions(ctx, api.SessionFilter{Statuses: all, Name: req.Name, Limit: 1}); err != nil {
			continue
		}
		outage.Over()
		if len(found) > 0 {
			return api.CreatedSession{ID: found[0].ID, Name: req.Name, Status: found[0].Status, Created: true}, nil
		}
		if created, err = c.CreateSession(ctx, req); err == nil || !follow.Passing(err) {
			return created, err
		}
	}
}

// holdLease renews the lease of a session until stop is called. A renewal that fails is made good by the next one.
func holdLease(ctx context.Context, c *api.Client, id string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var w sync.WaitGroup
	w.Go(func() {
		t := time.NewTicker(leaseRenew)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				_ = c.RenewLease(ctx, id, leaseLength)
			}
		}
	})
	return func() { cancel(); w.Wait() }
}

// remove ends the session; a session that does not run yet has to be forced.
func (o *runOptions) remove(ctx context.Context, cmd *cobra.Command, c *api.Client, s api.CreatedSession, running bool) {
	ctx, cancel := frame.Within(ctx, removeTimeout)
	defer cancel()
	_, err := c.DestroySession(ctx, s.ID, api.DestroyOptions{Forced: !running, NoWait: true})
	if err != nil && !api.IsNotFound(err) {
		if info, lookErr := c.SessionInfo(ctx, s.ID); lookErr == nil && (api.Ended(info.Status) || info.Status == api.StatusTerminating) {
			return
		}
		frame.Say(cmd, "berth: session %s could not be removed: %v\n  next: berth session rm -f %s", s.Name, err, s.ID)
	}
}

// followBatch shows the log of a batch session until it ends.
func (o *runOptions) followBatch(
	ctx context.Context, cmd *cobra.Command, c *api.Client, id string, signals <-chan os.Signal,
) (api.SessionInfo, error) {
	ctx, stop := frame.UntilSignal(ctx, signals)
	defer stop()
	if err := follow.Logs(ctx, c, id, "", cmd.OutOrStdout(), o.app.Outage(cmd.ErrOrStderr())); err != nil {
		return api.SessionInfo{}, err
	}
	return o.app.Watch(ctx, c, id, frame.GoalEnded, &frame.Progress{Out: cmd.ErrOrStderr(), Quiet: true})
}

// batchExit turns the end of a batch session into the exit of this process.
func batchExit(id string, info api.SessionInfo) error {
	switch {
	case info.ExitCode != nil:
		return frame.ExitWith(*info.ExitCode)
	case info.Result == api.ResultSuccess:
		return nil
	case info.Result == api.ResultFailure:
		return &frame.ExitError{Code: frame.ExitFailure}
	}
	reason := info.StatusInfo
	if reason == "" {
		reason = "no reason is known"
	}
	return frame.Hint(fmt.Errorf("batch session %s ended without a result: %s (%s)", id, info.Status, reason), "berth session logs %s", id)
}
