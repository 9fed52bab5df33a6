package administration

import (
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/api/history"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/httpapi/params"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/metric"
)

// span reads the range of a history: from, until (RFC 3339) and step (seconds), each with a default.
func (h *Handlers) span(p *params.Set) metric.Range {
	var r metric.Range
	for name, to := range map[string]*time.Time{"from": &r.From, "until": &r.Until} {
		if p.Text(name, "") != "" {
			*to = instant(p, name)
		}
	}
	r.Step = time.Duration(p.Number("step", 0, 0, 366*24*3600)) * time.Second
	return r
}

func (h *Handlers) sessionMetrics(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	r, owner := h.span(p), cluster.AccessKey(p.Text("owner_access_key", ""))
	if err := p.Err(); err != nil {
		return err
	}
	is, err := h.Metrics.OfSession(c.Context(), c.Actor(), c.Path("s"), owner, r)
	return told(c, is, err)
}

// history answers with what a use case makes of a range.
func (h *Handlers) history(c route.Call, ask func(r metric.Range, p *params.Set) (metric.History, error)) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	r := h.span(p)
	if err := p.Err(); err != nil {
		return err
	}
	is, err := ask(r, p)
	return told(c, is, err)
}

func (h *Handlers) agentMetrics(c route.Call) error {
	return h.history(c, func(r metric.Range, _ *params.Set) (metric.History, error) {
		return h.Metrics.OfAgent(c.Context(), c.Actor(), cluster.AgentID(c.Path("a")), r)
	})
}

func (h *Handlers) groupMetrics(c route.Call) error {
	return h.history(c, func(r metric.Range, _ *params.Set) (metric.History, error) {
		return h.Metrics.OfGroup(c.Context(), c.Actor(), c.Path("sg"), r)
	})
}

func (h *Handlers) clusterMetrics(c route.Call) error {
	return h.history(c, func(r metric.Range, _ *params.Set) (metric.History, error) {
		return h.Metrics.OfGroup(c.Context(), c.Actor(), "", r)
	})
}

func (h *Handlers) projectMetrics(c route.Call) error {
	return h.history(c, func(r metric.Range, p *params.Set) (metric.History, error) {
		return h.Metrics.OfProject(c.Context(), c.Actor(), c.Path("p"), p.Text("domain", ""), r)
	})
}

// told answers with a history.
func told(c route.Call, is metric.History, err error) error {
	if err != nil {
		return err
	}
	out := history.History{From: api.TimeText(is.Range.From), Until: api.TimeText(is.Range.Until),
		StepSeconds: int(is.Range.Step / time.Second), Series: make([]history.Series, len(is.Series))}
	for i, s := range is.Series {
		one := history.Series{KernelID: string(s.Kernel), Hostname: s.Hostname, Agent: string(s.Agent),
			Points: make([]history.Point, len(s.Points))}
		for j, p := range s.Points {
			one.Points[j] = history.Point{At: api.TimeText(p.At), CPU: p.CPU, Mem: p.Mem, IORead: p.IORead, IOWrite: p.IOWrite,
				NetRx: p.NetRx, NetTx: p.NetTx, Devices: p.Devices}
		}
		out.Series[i] = one
	}
	return route.OK(c, out)
}
