package operation

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/facts"
)

// Limits of what clients report.
const (
	maxErrorWords     = 128     // bytes of source and language
	maxErrorText      = 8 << 10 // of the message and of the address
	maxErrorTraceback = 32 << 10
	maxErrorContext   = 8 << 10
	// maxErrorLogs are kept of one user: the newest.
	maxErrorLogs = 500
	// MaxErrorLogPage is the longest page of them.
	MaxErrorLogPage = 100
	maxErrorLogPage = 100_000 // number of a page
)

// severities of error logs, as the wire names them.
var severities = map[string]bool{"critical": true, "error": true, "warning": true, "info": true, "debug": true}

// ErrorReport is what a client tells of an error that its user met.
type ErrorReport struct {
	Severity, Source, Message, Language string
	Context                             json.RawMessage // an object; nil is an empty one
	RequestURL                          *string
	RequestStatus                       *int
	Traceback                           *string
}

// ErrorLog is a report that is kept.
type ErrorLog struct {
	ID            string
	CreatedAt     time.Time
	UserID        cluster.UserID
	Severity      string
	Source        string
	Message       string
	Language      string
	Context       json.RawMessage
	RequestURL    *string
	RequestStatus *int
	Traceback     *string
	Read          bool
}

func (r *ErrorReport) check() error {
	if !severities[r.Severity] {
		return fault.Invalidf("%q is not a severity", store.Text(r.Severity)).WithNext("use critical, error, warning, info or debug")
	}
	if r.Source == "" || r.Message == "" {
		return fault.Invalidf("an error log needs a source and a message")
	}
	address, traceback := "", ""
	if r.RequestURL != nil {
		address = *r.RequestURL
	}
	if r.Traceback != nil {
		traceback = *r.Traceback
	}
	for _, f := range []struct {
		name, text string
		most       int
	}{
		{"source", r.Source, maxErrorWords}, {"context_lang", r.Language, maxErrorWords}, {"message", r.Message, maxErrorText},
		{"request_url", address, maxErrorText}, {"traceback", traceback, maxErrorTraceback},
	} {
		if len(f.text) > f.most || store.Text(f.text) != f.text {
			return fault.Invalidf("%s of an error log is text of %d bytes at most", f.name, f.most).WithNext("report the end of it only")
		}
	}
	if r.Context == nil {
		r.Context = json.RawMessage("{}")
	}
	var object map[string]any
	if len(r.Context) > maxErrorContext || json.Unmarshal(r.Context, &object) != nil || object == nil {
		return fault.Invalidf("context_env of an error log is a JSON object of %d bytes at most", maxErrorContext)
	}
	if r.RequestStatus != nil && (*r.RequestStatus < 0 || *r.RequestStatus > 999) {
		return fault.Invalidf("request_status %d is not a status of HTTP", *r.RequestStatus)
	}
	return nil
}

// ReportError keeps what the actor's client tells of an error, and forgets the oldest of the actor's beyond a bound.
func (s *Service) ReportError(ctx context.Context, a authz.Actor, r ErrorReport) error {
	if err := authz.Authenticated(a); err != nil {
		return err
	}
	if err := r.check(); err != nil {
		return err
	}
	var status *int32
	if r.RequestStatus != nil {
		status = new(int32(*r.RequestStatus))
	}
	err := s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		err := tx.AddErrorLog(ctx, dbgen.AddErrorLogParams{ID: s.d.IDs(), UserID: string(a.UserID), Severity: r.Severity, Source: r.Source,
			Message: r.Message, ContextLang: r.Language, ContextEnv: r.Context, RequestUrl: r.RequestURL, RequestStatus: status,
			Traceback: r.Traceback})
		if err != nil {
			return err
		}
		return tx.TrimErrorLogs(ctx, string(a.UserID), maxErrorLogs)
	})
	if err != nil {
		return fmt.Errorf("keep an error log: %w", err)
	}
	return nil
}

// ErrorLogs are a page of what the actor may see, the newest first, and how many there are. With markRead those of the page that the
// actor may clear count as read afterwards.
func (s *Service) ErrorLogs(ctx context.Context, a authz.Actor, page, size int, markRead bool) (_ []ErrorLog, total int, err error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, 0, err
	}
	if size < 1 || size > MaxErrorLogPage || page < 1 || page > maxErrorLogPage {
		return nil, 0, fault.Invalidf("a page of error logs has 1 to %d entries, and the first is page 1", MaxErrorLogPage)
	}
	var args []any
	arg := func(v any) string { args = append(args, v); return fmt.Sprintf("$%d", len(args)) }
	from := " FROM " + facts.ErrorLogs.From + " WHERE " + facts.ErrorLogs.Where(a, authz.See, arg)
	db := s.d.Store.DB()
	if err := db.QueryRow(ctx, "SELECT count(*)"+from, args...).Scan(&total); err != nil {
		return nil, 0, fmt.Errorf("count error logs: %w", err)
	}
	rows, err := db.Query(ctx, `SELECT e.id, e.created_at, e.user_id, e.severity, e.source, e.message, e.context_lang, e.context_env,
e.request_url, e.request_status, e.traceback, e.is_read`+from+
		fmt.Sprintf(" ORDER BY e.created_at DESC, e.id LIMIT %d OFFSET %d", size, (page-1)*size), args...)
	if err != nil {
		return nil, 0, fmt.Errorf("read error logs: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ErrorLog])
	if err != nil {
		return nil, 0, fmt.Errorf("read error logs: %w", err)
	}
	if markRead && len(found) > 0 {
		ids := make([]string, len(found))
		for i, l := range found {
			ids[i] = l.ID
		}
		args = nil
		sql := "UPDATE error_logs SET is_read = true WHERE NOT is_read AND id = ANY(" + arg(ids) + "::uuid[]) AND id IN (SELECT e.id FROM " +
			facts.ErrorLogs.From + " WHERE " + facts.ErrorLogs.Where(a, authz.Change, arg) + ")"
		if _, err := db.Exec(ctx, sql, args...); err != nil {
			return nil, 0, fmt.Errorf("mark error logs as read: %w", err)
		}
	}
	return found, total, nil
}

// ClearError forgets an error log.
func (s *Service) ClearError(ctx context.Context, a authz.Actor, id string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "error-log.clear", id)
	defer end(&err)
	if err := authz.Authenticated(a); err != nil {
		return err
	}
	canonical, ok := cluster.CanonicalUUID(id)
	if !ok {
		return authz.NotFound(authz.ErrorLogs.Noun, store.Text(id))
	}
	row, err := s.d.Store.OwnerOfErrorLog(ctx, canonical)
	if store.Missing(err) {
		return authz.NotFound(authz.ErrorLogs.Noun, canonical)
	}
	if err != nil {
		return fmt.Errorf("read an error log: %w", err)
	}
	o := authz.Object{Owner: cluster.UserID(row.UserID), OwnerRole: authz.Role(row.Role), Domain: row.DomainName, Name: canonical}
	if err := authz.ErrorLogs.Check(a, authz.Change, o); err != nil {
		return err
	}
	n, err := s.d.Store.DropErrorLog(ctx, canonical)
	if err == nil && n == 0 {
		return authz.NotFound(authz.ErrorLogs.Noun, canonical)
	}
	if err != nil {
		return fmt.Errorf("clear an error log: %w", err)
	}
	return nil
}
