package agent_test

import (
	"context"
	"io"
	"net/http"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// to carries requests to the agent as the manager does.
type to struct{ m *manager }

func (t to) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	if r.Body != nil && r.GetBody == nil {
		return t.m.link.RoundTrip("i-test", r)
	}
	err = t.m.reached(func() error {
		if r.GetBody != nil {
			if r.Body, err = r.GetBody(); err != nil {
				return err
			}
		}
		resp, err = t.m.link.RoundTrip("i-test", r)
		return err
	})
	return resp, err
}

// reached calls again what the link gives up: an agent is to have its connection for byte streams within a few seconds, which is not so on
// a busy machine.
func (m *manager) reached(call func() error) error {
	for end := time.Now().Add(time.Minute); ; {
		if err := call(); fault.ReasonOf(err) != "agent-not-connected" || time.Now().After(end) {
			return err
		}
	}
}

func (m *manager) upgrade(ctx context.Context, path string, header http.Header) (s io.ReadWriteCloser, err error) {
	err = m.reached(func() error { s, err = m.link.Upgrade(ctx, "i-test", path, header); return err })
	return s, err
}

func (m *manager) runner(id cluster.KernelID) *run.Client {
	return run.NewClient(run.Options{Transport: to{m}, BaseURL: "http://agent/kernels/" + string(id) + "/runner"})
}
