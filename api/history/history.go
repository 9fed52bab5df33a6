// Package history asks what sessions and agents used over time.
package history

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"berth.dev/berth/api"
)

// History is a history of use: of each kernel of a session, of an agent, or of many added up.
type History struct {
	From        string   `json:"from"` // aligned to the step
	Until       string   `json:"until"`
	StepSeconds int      `json:"step_seconds"`
	Series      []Series `json:"series"`
}

// Series are the points of one kernel or agent, or of many added up.
type Series struct {
	KernelID string  `json:"kernel_id,omitempty"`
	Hostname string  `json:"hostname,omitempty"` // of the kernel in its session
	Agent    string  `json:"agent,omitempty"`
	Points   []Point `json:"points"` // in order; steps of which nothing is known are left out
}

// Point is the average of one step. What was not measured is absent.
type Point struct {
	At      string   `json:"at"`
	CPU     *float64 `json:"cpu_util,omitempty"` // percent, 100 is one core
	Mem     *float64 `json:"mem,omitempty"`      // bytes
	IORead  *float64 `json:"io_read,omitempty"`  // bytes a second, as all that follow
	IOWrite *float64 `json:"io_write,omitempty"`
	NetRx   *float64 `json:"net_rx,omitempty"`
	NetTx   *float64 `json:"net_tx,omitempty"`
	// Devices are other measurements by name, such as cuda_util in percent or cuda_mem in bytes.
	Devices map[string]float64 `json:"devices,omitempty"`
}

// OfSession asks for the history of a session. Zero times and a step of 0 leave the choice to the manager.
func OfSession(ctx context.Context, c *api.Client, session string, from, until time.Time, step time.Duration) (History, error) {
	q := url.Values{}
	if !from.IsZero() {
		q.Set("from", from.UTC().Format(time.RFC3339))
	}
	if !until.IsZero() {
		q.Set("until", until.UTC().Format(time.RFC3339))
	}
	if step > 0 {
		q.Set("step", strconv.Itoa(int(step/time.Second)))
	}
	var out History
	err := c.Get(ctx, "/session/"+url.PathEscape(session)+"/metrics", q, &out)
	return out, err
}
