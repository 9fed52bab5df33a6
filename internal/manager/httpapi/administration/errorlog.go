package administration

import (
	"encoding/json"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/manager/httpapi/params"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/operation"
)

// errorPage is how many error logs a page has that names no size.
const errorPage = 20

func (h *Handlers) errorLogs(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	size, page := p.Number("page_size", errorPage, 1, operation.MaxErrorLogPage), p.Number("page_no", 1, 1, 100_000)
	mark := p.Flag("mark_read", false)
	if err := p.Err(); err != nil {
		return err
	}
	found, total, err := h.Operations.ErrorLogs(c.Context(), c.Actor(), page, size, mark)
	if err != nil {
		return err
	}
	out := admin.ErrorLogs{Logs: []admin.ErrorLog{}, Count: total}
	for _, l := range found {
		out.Logs = append(out.Logs, admin.ErrorLog{ID: l.ID, CreatedAt: float64(l.CreatedAt.UnixMicro()) / float64(time.Second/time.Microsecond),
			Severity: l.Severity, Source: l.Source, User: string(l.UserID), Read: l.Read, Message: l.Message, Language: l.Language,
			Context: l.Context, RequestURL: l.RequestURL, RequestStatus: l.RequestStatus, Traceback: l.Traceback})
	}
	return route.OK(c, out)
}

func (h *Handlers) reportError(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	r := operation.ErrorReport{Severity: p.Need("severity"), Source: p.Need("source"), Message: p.Need("message"),
		Language: p.Text("context_lang", ""), Context: contextOf(p), RequestURL: p.Optional("request_url"), Traceback: p.Optional("traceback")}
	if p.Has("request_status") {
		r.RequestStatus = new(p.Number("request_status", 0, 0, 999))
	}
	if err := p.Err(); err != nil {
		return err
	}
	if err := h.Operations.ReportError(c.Context(), c.Actor(), r); err != nil {
		return err
	}
	return route.OK(c, api.Done{Success: true})
}

// contextOf is the object context_env, which clients write as an object or as its text.
func contextOf(p *params.Set) json.RawMessage {
	v, ok := p.Get("context_env")
	if !ok {
		return nil
	}
	if text, isText := v.(string); isText {
		return json.RawMessage(text)
	}
	raw, err := json.Marshal(v)
	if err != nil {
		p.Fail("context_env", "must be an object")
	}
	return raw
}

func (h *Handlers) clearError(c route.Call) error {
	if err := h.Operations.ClearError(c.Context(), c.Actor(), c.Path("id")); err != nil {
		return err
	}
	return route.OK(c, api.Done{Success: true})
}
