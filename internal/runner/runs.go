package runner

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/runner/cell"
	"berth.dev/berth/internal/runner/output"
	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/wire/run"
)

// job is one run: a cell or a batch.
type job struct {
	id   string
	mode run.Mode
	code string
	opts run.BatchOptions
	hash [32]byte
	log  *output.Log
	// maxItem bounds one picture or the like, in bytes.
	maxItem int64

	// ctx ends with an interrupt; interrupted is the same as a channel.
	ctx    context.Context
	cancel context.CancelFunc

	mu        sync.Mutex
	started   bool
	done      bool
	status    run.Status // when done
	exit      int
	delivered bool  // a reader got the end
	cursor    int64 // first record that readers who do not count have not got
	read      time.Time
	lease     time.Duration // how long it may go on without a reader; 0: for ever
	question  *question
	process   *proc.Process // of a batch or recipe
	presses   int           // interrupts so far
	mirror    func(stream string) *mirror
}

type question struct {
	seq      int64
	password bool
	answer   chan cell.Answer
}

// markData is what a mark carries.
type markData struct {
	Exit     *int `json:"exit,omitempty"`
	Password bool `json:"password,omitempty"`
}

func hashOf(req run.StepRequest) [32]byte {
	b, err := json.Marshal(struct {
		M run.Mode
		C string
		O *run.BatchOptions
	}{req.Mode, req.Code, req.Options})
	if err != nil {
		return [32]byte{}
	}
	return sha256.Sum256(b)
}

// mark appends a status to the log.
func (j *job) mark(s run.Status, d markData) int64 {
	b, _ := json.Marshal(d) // cannot fail
	return j.log.Mark(string(s), string(b))
}

func (j *job) finish(s run.Status, exit int) {
	j.mark(s, markData{Exit: &exit})
	j.mu.Lock()
	j.done, j.status, j.exit = true, s, exit
	j.question = nil
	j.mu.Unlock()
	j.log.Loosen()
	j.cancel()
}

// The methods of cell.Sink.

func (j *job) Text(stream, text string) {
	j.copy(stream, text)
	_ = j.log.Text(context.Background(), stream, text) // waits until it is read, or the run is interrupted
}

// TextNow: items other than the two streams are never cut or joined.
func (j *job) TextNow(stream, text string) {
	j.copy(stream, text)
	switch {
	case stream == cell.Stdout, stream == cell.Stderr:
		j.log.TextNow(stream, text)
	case int64(len(text)) > j.maxItem:
		j.tooLarge(stream, len(text))
	default:
		j.log.ItemNow(stream, "", text)
	}
}

func (j *job) MediaNow(mime, data string) {
	if int64(len(data)) > j.maxItem {
		j.tooLarge(mime, len(data))
		return
	}
	j.log.ItemNow(string(run.Media), mime, data)
}

func (j *job) tooLarge(what string, size int) {
	j.TextNow(cell.Stderr, fmt.Sprintf("[an output of type %s with %d bytes was left out: the limit is %d]\n", what, size, j.maxItem))
}

func (j *job) copy(stream, text string) {
	if stream == cell.HTML {
		return
	}
	_, _ = j.mirror(stream).Write([]byte(text)) // a mirror takes everything
}

func (j *job) Congested() bool { return j.log.Full() }

func (j *job) Relieved() <-chan struct{} {
	out := make(chan struct{})
	go func() { // ends with the run at the latest, which loosens the log
		defer close(out)
		for {
			changed := j.log.Changed()
			if !j.log.Full() {
				return
			}
			<-changed
		}
	}()
	return out
}

func (j *job) Ask(password bool) cell.Answer { return j.ask(password, nil) }

// ask waits for an answer, the run's end or the asker's (gone may be nil).
func (j *job) ask(password bool, gone <-chan struct{}) cell.Answer {
	q := &question{password: password, answer: make(chan cell.Answer, 1)}
	j.mu.Lock()
	if j.done || j.ctx.Err() != nil {
		j.mu.Unlock()
		return cell.Answer{None: true}
	}
	q.seq = j.mark(run.StatusWaitingInput, markData{Password: password})
	j.question = q
	j.mu.Unlock()
	defer func() {
		j.mu.Lock()
		if j.question == q {
			j.question = nil
		}
		j.mu.Unlock()
	}()
	select {
	case a := <-q.answer:
		return a
	case <-j.ctx.Done():
	case <-gone:
	}
	return cell.Answer{None: true}
}

// answer takes the reader's input.
func (j *job) answer(req run.StepRequest) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	q := j.question
	switch {
	case j.done, q != nil && req.InputSeq != 0 && req.InputSeq != q.seq, q == nil && req.InputSeq != 0:
		return nil // the question was answered before, or is void
	case q == nil:
		return fault.Conflictf("run %s asks for no input", j.id).WithReason("not-waiting-input").WithNext("continue the run")
	}
	j.question = nil
	q.answer <- cell.Answer{Text: req.Code, EOF: req.EOF}
	return nil
}

// stepping notes that somebody reads.
func (j *job) stepping() {
	j.mu.Lock()
	j.read = time.Now()
	j.mu.Unlock()
}

// step waits for something to report. deliver must be called when the reply was written.
func (j *job) step(ctx context.Context, req run.StepRequest) (res run.StepResult, deliver func(), err error) {
	wait := min(time.Duration(req.WaitMS)*time.Millisecond, run.MaxWait)
	flush := time.Duration(req.FlushMS) * time.Millisecond
	if flush <= 0 || flush > wait {
		flush = wait
	}
	limit := req.MaxBytes
	if limit <= 0 {
		limit = 1 << 20
	}
	j.mu.Lock()
	from := j.cursor
	j.mu.Unlock()
	if req.From != nil {
		from = *req.From
	}
	j.log.Ack(from)
	j.mu.Lock()
	j.lease = time.Duration(req.LeaseMS) * time.Millisecond
	j.mu.Unlock()
	j.stepping()
	defer j.stepping()
	over := time.NewTimer(wait)
	defer over.Stop()
	var gathered <-chan time.Time
	for {
		changed := j.log.Changed()
		j.mu.Lock()
		done := j.done // asked before reading: what is read then holds everything
		j.mu.Unlock()
		// Everything below from is forgotten by now, so what is pending is what would be read.
		bytes, marks := j.log.Pending()
		// A full log has stopped the producer: waiting for more would be in vain.
		ready := done || marks > 0 || bytes >= int64(limit) || j.log.Full()
		if bytes > 0 && !ready && gathered == nil {
			t := time.NewTimer(flush)
			defer t.Stop()
			gathered = t.C
		}
		if !ready {
			select {
			case <-changed:
				continue
			case <-gathered:
			case <-over.C:
			case <-ctx.Done():
				return res, nil, ctx.Err()
			}
		}
		b, err := j.log.Read(from, limit)
		if err != nil {
			return res, nil, fault.Invalidf("run %s", j.id).WithCause(err)
		}
		res = j.report(b, done)
		return res, j.deliverer(req, res), nil
	}
}

func (j *job) deliverer(req run.StepRequest, res run.StepResult) func() {
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if req.From == nil {
			j.cursor = max(j.cursor, res.Seq)
		}
		if res.Status.Final() {
			j.delivered = true
		}
	}
}

// report puts records into the shape of the execute protocol.
func (j *job) report(b output.Batch, done bool) run.StepResult {
	res := run.StepResult{RunID: j.id, Status: run.StatusContinued, Console: []run.Console{}, Seq: b.Next, Lost: b.Lost}
	if b.Lost > 0 {
		res.Console = append(res.Console, run.Console{Type: run.Stderr,
			Data: fmt.Sprintf("[%d bytes of output were left out here: they were not read in time]\n", b.Lost)})
	}
	for i := 0; i < len(b.Records); {
		r := b.Records[i]
		if r.Mark {
			j.reportMark(&res, r, b.Next-1)
			break
		}
		text := []string{r.Data}
		for i++; i < len(b.Records) && joins(r, b.Records[i]); i++ {
			text = append(text, b.Records[i].Data)
		}
		res.Console = append(res.Console, run.Console{Type: run.ConsoleType(r.Type), Mime: r.Mime, Data: strings.Join(text, "")})
	}
	if res.Status == run.StatusContinued && (len(b.Records) == 0 || !b.Records[len(b.Records)-1].Mark) {
		j.mu.Lock()
		if q := j.question; q != nil && q.seq < b.Next {
			res.Status, res.Options = run.StatusWaitingInput, &run.StepOptions{IsPassword: q.password}
		}
		if done && len(b.Records) == 0 { // whoever asks again after the end hears of it again
			res.Status, res.ExitCode = j.status, &j.exit
		}
		j.mu.Unlock()
	}
	return res
}

// joins reports whether two records in a row are one piece of text.
func joins(a, b output.Record) bool {
	typ := run.ConsoleType(a.Type)
	return a.Type == b.Type && !b.Mark && (typ == run.Stdout || typ == run.Stderr)
}

func (j *job) reportMark(res *run.StepResult, r output.Record, seq int64) {
	var d markData
	_ = json.Unmarshal([]byte(r.Data), &d) // we wrote it
	if run.Status(r.Type) != run.StatusWaitingInput {
		res.Status, res.ExitCode = run.Status(r.Type), d.Exit
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.question != nil && j.question.seq == seq {
		res.Status, res.Options = run.StatusWaitingInput, &run.StepOptions{IsPassword: d.Password}
	}
}

// deserted reports that the reader who promised to come back within the lease did not.
func (j *job) deserted(now time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lease > 0 && now.Sub(j.read) > j.lease
}

// blocked reports that the run needs its reader to go on, and since when it had none.
func (j *job) blocked() (bool, time.Time) {
	full := j.log.Full()
	j.mu.Lock()
	defer j.mu.Unlock()
	return full || j.question != nil, j.read
}
