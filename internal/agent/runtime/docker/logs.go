package docker

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
)

// Logs streams the container's combined output, oldest first.
func (r *Runtime) Logs(ctx context.Context, kernel cluster.KernelID, opt runtime.LogOptions) (io.ReadCloser, error) {
	name, err := r.name(kernel)
	if err != nil {
		return nil, err
	}
	o := client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: opt.Follow}
	if opt.Tail > 0 {
		o.Tail = strconv.Itoa(opt.Tail)
	}
	if !opt.Since.IsZero() {
		o.Since = opt.Since.UTC().Format(time.RFC3339Nano)
	}
	// The stream may last; only its beginning has a deadline.
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(shortCall, cancel)
	body, err := r.api.ContainerLogs(ctx, name, o)
	if err == nil && !late.Stop() {
		_ = body.Close()
		err = context.DeadlineExceeded
	}
	if err != nil {
		if !late.Stop() && errors.Is(err, context.Canceled) {
			err = context.DeadlineExceeded
		}
		cancel()
		if cerrdefs.IsConflict(err) { // it is being removed, which comes after its log was kept
			return nil, absent(kernel)
		}
		return nil, r.containerFailure(err, kernel, "read the log of")
	}
	return &demux{in: body, cancel: cancel}, nil
}

// demux joins the two streams that the engine sends in one: each part has a header of one byte
// of stream, three of padding and four of length.
type demux struct {
	in     io.ReadCloser
	cancel context.CancelFunc
	left   uint32
}

func (d *demux) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for d.left == 0 {
		var head [8]byte
		if _, err := io.ReadFull(d.in, head[:]); err != nil {
			return 0, err
		}
		d.left = binary.BigEndian.Uint32(head[4:])
	}
	if uint32(min(len(p), 1<<30)) > d.left {
		p = p[:d.left]
	}
	n, err := d.in.Read(p)
	d.left -= uint32(n)
	if err == io.EOF && d.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (d *demux) Close() error {
	d.cancel()
	return d.in.Close()
}
