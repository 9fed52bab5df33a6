package run

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"sync"

	"berth.dev/berth/internal/fault"
)

// Stream is a terminal or exec stream. One goroutine may Recv while others Send.
type Stream struct {
	body   io.ReadCloser
	in     *bufio.Reader
	out    *io.PipeWriter
	cancel context.CancelFunc

	mu sync.Mutex // orders frames of concurrent senders
}

// stream opens a full-duplex POST: frames go out in the request body while frames come back in the reply's.
func (c *Client) stream(ctx context.Context, path string, first Frame) (*Stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	pr, pw := io.Pipe()
	req, err := c.request(ctx, http.MethodPost, path, pr)
	if err != nil {
		cancel()
		return nil, err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	// A transport that gives a request up waits until the request's body lets go of it.
	context.AfterFunc(ctx, func() { _ = pr.CloseWithError(context.Cause(ctx)) })
	s := &Stream{out: pw, cancel: cancel}
	sent := make(chan struct{})
	go func() { // ends when the frame is taken or the request is given up: both close the pipe's other end
		defer close(sent)
		_ = s.Send(first) // a failure shows as the reply's error
	}()
	resp, err := c.send(req) //nolint:bodyclose // the stream closes it
	if err != nil {
		cancel()
		_ = pr.CloseWithError(io.ErrClosedPipe)
		<-sent
		return nil, err
	}
	<-sent
	s.body, s.in = resp.Body, bufio.NewReaderSize(resp.Body, 64<<10)
	f, err := s.Recv()
	if err == nil && f.Type != FrameReady {
		err = fault.Unavailablef("the runner began a stream with frame %d", f.Type)
	}
	if err != nil {
		s.Close()
		return nil, fault.Unavailablef("open a stream to the runner").WithCause(err)
	}
	return s, nil
}

// Send writes one frame; it blocks while the runner does not read.
func (s *Stream) Send(f Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return WriteFrame(s.out, f)
}

// Recv reads the next frame; io.EOF after the last.
func (s *Stream) Recv() (Frame, error) { return ReadFrame(s.in) }

// Write sends p as standard input, in frames.
func (s *Stream) Write(p []byte) (int, error) {
	n := 0
	for len(p) > 0 {
		k := min(len(p), 32<<10)
		if err := s.Send(Frame{Type: FrameStdin, Data: p[:k]}); err != nil {
			return n, err
		}
		n, p = n+k, p[k:]
	}
	return n, nil
}

// CloseInput tells the process that its input ended.
func (s *Stream) CloseInput() error { return s.Send(Frame{Type: FrameStdinClose}) }

// Resize tells the terminal its new size.
func (s *Stream) Resize(rows, cols uint16) error {
	return s.Send(JSONFrame(FrameResize, Resize{Rows: rows, Cols: cols}))
}

// Wait copies output until the process ends and returns how it ended. Either writer may be nil.
func (s *Stream) Wait(stdout, stderr io.Writer) (Exit, error) {
	for {
		f, err := s.Recv()
		if err == io.EOF {
			return Exit{}, ErrStreamEnded
		}
		if err != nil {
			return Exit{}, err
		}
		var w io.Writer
		switch f.Type {
		case FrameStdout:
			w = stdout
		case FrameStderr:
			w = stderr
		case FrameExit:
			var e Exit
			err := f.Decode(&e)
			return e, err
		}
		if w == nil {
			continue
		}
		if _, err := w.Write(f.Data); err != nil {
			return Exit{}, err
		}
	}
}

// Close gives the stream up; an exec's process is ended, a terminal's shell goes on.
func (s *Stream) Close() {
	_ = s.out.CloseWithError(io.ErrClosedPipe)
	s.cancel()
	if s.body != nil {
		_ = s.body.Close()
	}
}
