package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/store/list"
)

// maxChanges is how many changed rows of an entry are shown.
const maxChanges = 50

// Service reads the log, and counts what strangers write into it.
type Service struct {
	db *store.Store

	mu sync.Mutex
	// counts are refusals since window began, networks how many of them with an account came from each network.
	counts   map[Refusal]*refusals
	networks map[netip.Addr]int
	window   time.Time
}

// New makes the use cases.
func New(db *store.Store) (*Service, error) {
	if db == nil {
		return nil, fault.New(fault.Internal, "audit: a store is required")
	}
	return &Service{db: db, counts: map[Refusal]*refusals{}, networks: map[netip.Addr]int{}}, nil
}

// Entry is something that was done or denied.
type Entry struct {
	ID     int64
	At     time.Time
	Action string
	Object string
	Result string
	Reason string
	// UserID, Email, Role and Domain are those of who did it, at that time.
	UserID, Email, Role, Domain string
	AccessKey                   string
	// ActingFor is the access key on whose behalf it was done, where that is another one.
	ActingFor string
	// Token is the id of the API token that it was done with.
	Token     string
	Address   string
	RequestID string
	// Means is how somebody proved who they are, or failed to: of logins. Attempts is how many refusals the entry stands for.
	Means    string
	Attempts int64
	Changes  []Change
	// ChangeCount is the number of changed rows; Changes are the first of them.
	ChangeCount int
}

// Change is a changed row: its columns that differ, or all of them when it is new or was deleted.
type Change struct {
	Table, Key    string
	Before, After json.RawMessage
}

// Query selects entries. Those after an id come in the order in which they happened, others the newest first. The number of the former is
// that of the page.
type Query struct {
	// Filter and Order are the mini-language of lists; Limit is 1 to 100, 0 means 20.
	Filter, Order string
	Limit, Offset int
	After         *int64
}

var fields = list.Fields{
	"id": list.Number("a.id"), "at": list.Time("a.at"), "action": list.Text("a.action"), "object": list.Text("a.object"),
	"result": list.Text("a.result"), "user_id": list.Text("a.user_id"), "email": list.Text("a.email"), "role": list.Text("a.role"),
	"domain_name": list.Text("a.domain_name"), "access_key": list.Text("a.access_key"), "acting_for": list.Text("a.acting_for"),
	"address": list.Text("a.address"), "request_id": list.Text("a.request_id"), "token": list.Text("a.token"),
	"means": list.Text("a.means"), "attempts": list.Number("a.attempts"),
}

// counts are where the number of entries is kept.
const counts = `SELECT coalesce(sum(a.n), 0)::bigint FROM (SELECT c.domain_name, c.owner_role AS role, c.n FROM list_counts c
	WHERE c.list = 'audit_log') a WHERE true`

// List lists what was done by users of the domain for its administrators, everything for superadmins and monitors.
func (s *Service) List(ctx context.Context, a authz.Actor, q Query) (list.Page[*Entry], error) {
	var none list.Page[*Entry]
	if err := authz.Authenticated(a); err != nil {
		return none, err
	}
	l := &list.Spec{From: facts.AuditEntries.From, Key: facts.AuditEntries.Key, Fields: fields, Order: "a.id DESC",
		Counts: func() []string { return []string{counts} }}
	l.Where(facts.AuditEntries.Where(a, authz.See, l.Arg))
	if q.After != nil {
		l.And("a.id > %s", *q.After)
		l.Order, l.Uncounted = "a.id", true
	}
	keys, total, err := l.Keys(ctx, s.db.DB(), list.Query{Filter: q.Filter, Order: q.Order, Limit: q.Limit, Offset: q.Offset})
	if err != nil {
		return none, err
	}
	views, err := s.entries(ctx, keys)
	if err != nil {
		return none, err
	}
	return list.Page[*Entry]{Items: list.InOrder(keys, views), Total: total}, nil
}

// entries loads entries with their changes.
func (s *Service) entries(ctx context.Context, keys []string) (map[string]*Entry, error) {
	ids := make([]int64, len(keys))
	for i, k := range keys {
		ids[i], _ = strconv.ParseInt(k, 10, 64) // a column of numbers
	}
	rows, err := s.db.AuditEntries(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	out, joined, entries := map[string]*Entry{}, map[string]*Entry{}, []string{}
	for _, r := range rows {
		e := &Entry{ID: r.ID, At: r.At.UTC(), Action: r.Action, Object: r.Object, Result: r.Result, Reason: r.Reason, UserID: r.UserID,
			Email: r.Email, Role: r.Role, Domain: r.DomainName, AccessKey: r.AccessKey, ActingFor: r.ActingFor, Address: r.Address,
			RequestID: r.RequestID, Token: r.Token, Means: r.Means, Attempts: r.Attempts, Changes: []Change{}}
		out[strconv.FormatInt(r.ID, 10)], joined[r.Entry] = e, e
		entries = append(entries, r.Entry)
	}
	changes, err := s.db.AuditChanges(ctx, entries, maxChanges)
	if err != nil {
		return nil, fmt.Errorf("read the changes of the audit log: %w", err)
	}
	for _, c := range changes {
		e := joined[c.Entry]
		e.Changes = append(e.Changes, Change{Table: c.TableName, Key: c.Key, Before: c.Before, After: c.After})
		e.ChangeCount = int(c.N)
	}
	return out, nil
}

// Entries reads entries with their changes, in the order of the ids (internal).
func (s *Service) Entries(ctx context.Context, ids []int64) ([]*Entry, error) {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = strconv.FormatInt(id, 10)
	}
	views, err := s.entries(ctx, keys)
	if err != nil {
		return nil, err
	}
	return list.InOrder(keys, views), nil
}
