package nvmlhelper

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/fault"
)

const (
	// maxRequest bounds one request in bytes, maxWaiting how many wait, maxEvents how many events nobody has read yet.
	maxRequest = 64 << 10
	maxWaiting = 16
	maxEvents  = 256
	// farewell is how long the end waits for a question that the library has not answered. The driver may hang.
	farewell = time.Second
)

// cards is what is asked.
type cards interface {
	Look() (nvmlwire.Facts, error)
	Sample() (nvmlwire.Sample, error)
	// Watch tells every event until ctx ends.
	Watch(ctx context.Context, tell func(nvmlwire.Event))
}

// errStale is wrapped by failures after which only a new process can ask the library again.
var errStale = errors.New("a new process is needed")

// serve answers the requests on in, one after the other, until in ends. An error says why it stopped before that.
func serve(ctx context.Context, c cards, in io.Reader, out, errs io.Writer) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	w := &writer{out: out, failed: stop}
	w.send(nvmlwire.Message{Version: nvmlwire.Version})
	requests, events := make(chan nvmlwire.Request, maxWaiting), make(chan nvmlwire.Event, maxEvents)
	ended := make(chan error, 1)
	// Reads until in ends, which the agent sees to.
	go func() { ended <- read(in, requests, w) }()
	var group sync.WaitGroup
	group.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case r := <-requests:
				answer, err := ask(c, r)
				w.send(answer)
				if err != nil {
					stop(err)
				}
			}
		}
	})
	group.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-events:
				w.send(nvmlwire.Message{Event: &e})
			}
		}
	})
	group.Go(func() {
		lost := 0
		c.Watch(ctx, func(e nvmlwire.Event) {
			select {
			case events <- e:
				if lost > 0 {
					fmt.Fprintf(errs, "%d events were left out, because the agent did not read them\n", lost)
				}
				lost = 0
			default:
				lost++
			}
		})
	})
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	stop(nil)
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(farewell): // the process ends without them
	}
	return err
}

// read passes requests on until in ends.
func read(in io.Reader, requests chan<- nvmlwire.Request, w *writer) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxRequest)
	for lines.Scan() {
		var r nvmlwire.Request
		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&r); err != nil || r.ID <= 0 {
			return fault.Invalidf("a line on standard input is no request: %q", fault.Clip(lines.Text(), 200)).
				WithNext("leave the start of %s to the agent, or see %s help", nvmlwire.Program, nvmlwire.Program)
		}
		select {
		case requests <- r:
		default:
			w.send(nvmlwire.Message{ID: r.ID, Error: fmt.Sprintf("more than %d requests wait for NVIDIA's library", maxWaiting)})
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read requests: %w", err)
	}
	return nil
}

// ask answers one request. The error says that this process is of no more use.
func ask(c cards, r nvmlwire.Request) (nvmlwire.Message, error) {
	m := nvmlwire.Message{ID: r.ID}
	var err error
	switch r.Method {
	case nvmlwire.MethodLook:
		var facts nvmlwire.Facts
		if facts, err = c.Look(); err == nil {
			m.Facts = &facts
		}
	case nvmlwire.MethodSample:
		var sample nvmlwire.Sample
		if sample, err = c.Sample(); err == nil {
			m.Sample = &sample
		}
	default:
		err = fault.Invalidf("%s knows no method %q", nvmlwire.Program, fault.Clip(r.Method, 50)).
			WithNext("install the %s of the agent's release", nvmlwire.Program)
	}
	if err == nil {
		return m, nil
	}
	m.Error = text(err)
	if errors.Is(err, errStale) {
		return m, err
	}
	return m, nil
}

// writer writes messages, one line each.
type writer struct {
	mu     sync.Mutex
	out    io.Writer
	failed func(error)
}

func (w *writer) send(m nvmlwire.Message) {
	line, err := json.Marshal(m)
	if err == nil && len(line) >= nvmlwire.MaxLine {
		line, err = json.Marshal(nvmlwire.Message{ID: m.ID, Error: fmt.Sprintf("the answer has %d bytes, at most %d can be sent",
			len(line), nvmlwire.MaxLine)})
	}
	if err != nil {
		w.failed(fmt.Errorf("encode an answer: %w", err))
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.out.Write(append(line, '\n')); err != nil {
		w.failed(fmt.Errorf("write an answer: %w", err))
	}
}
