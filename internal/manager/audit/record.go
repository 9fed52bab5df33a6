// Package audit is the record of what was done to the cluster and what was denied: who, on whose behalf, what, to which object, the rows
// before and after, from where, by which request.
//
// Every use case of a noun that changes something begins with Begin. What it then changes is recorded in the transaction that changes it
// (store.Note): there is no change without its record and no record of a change that was rolled back. Triggers add the rows before and
// after, without secrets (migration 0035). Refusals are recorded by themselves. A test of authztest calls every use case and looks for
// its record.
package audit

import (
	"context"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Results of entries.
const (
	Done   = "done"
	Denied = "denied"
)

const (
	// maxObject and maxReason bound what a caller's text takes of the log, in bytes.
	maxObject = 256
	maxReason = 512
	// writeTimeout bounds how long the record of a refusal is waited for: what the database is too slow for is told by the log alone.
	writeTimeout = 20 * time.Second
	// lastWrite bounds how long a manager that stops waits for the last ones.
	lastWrite = 5 * time.Second
)

type (
	requestKey struct{}
	entryKey   struct{}
)

// WithRequest names the request that a context belongs to.
func WithRequest(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestKey{}, id)
}

// entry is a use case that runs.
type entry struct {
	is   dbgen.RecordParams
	note *store.Note
	// projects and leads are those that the actor was a member and an administrator of when it began.
	projects, leads []string
}

// Begin records the use case that follows. The context it returns is for all that the use case does; end is called when it returns, with
// its error. A use case that another one calls belongs to the other one's record.
func Begin(ctx context.Context, db *store.Store, a authz.Actor, action, object string) (inner context.Context, end func(*error)) {
	if store.NoteOf(ctx) != nil {
		return ctx, func(*error) {}
	}
	request, _ := ctx.Value(requestKey{}).(string)
	acting := ""
	if a.By != nil {
		a, acting = *a.By, string(a.AccessKey)
	}
	e := &entry{is: dbgen.RecordParams{
		Action: action, Object: fault.Clip(store.Text(object), maxObject), UserID: string(a.UserID), Email: a.Email, Role: string(a.Role),
		DomainName: a.Domain, AccessKey: string(a.AccessKey), ActingFor: acting, Address: a.ClientIP, RequestID: request,
	}, projects: store.Texts(a.Projects), leads: store.Texts(a.Leads)}
	if a.Scope != nil {
		e.is.Token = a.Scope.Token
	}
	e.note = &store.Note{Write: e.writeChange}
	inner = store.WithNote(context.WithValue(ctx, entryKey{}, e), e.note)
	return inner, func(err *error) {
		e.note.Close()
		e.end(inner, db, *err)
	}
}

// Trial has the use cases that are called with the context leave no record. It is for those that are tried in a transaction which is rolled
// back.
func Trial(ctx context.Context) context.Context {
	return store.WithNote(ctx, &store.Note{Write: func(context.Context, *store.Tx) (int64, error) { return 0, nil }})
}

// ActingFor says on behalf of which access key the use case of the context acts; "" is the actor's own.
func ActingFor(ctx context.Context, key string) {
	if e, ok := ctx.Value(entryKey{}).(*entry); ok && key != "" && key != e.is.AccessKey {
		e.is.ActingFor = fault.Clip(store.Text(key), maxObject)
	}
}

// ByMeans says how the actor of the context's use case has proven who they are, for the record of a login.
func ByMeans(ctx context.Context, means string) {
	if e, ok := ctx.Value(entryKey{}).(*entry); ok {
		e.is.Means = means
	}
}

// writeChange is the note of a transaction. Decisions are about the actor of the request's beginning; who has lost their role, account,
// keypair, API token or a project while it ran changes nothing: else an administrator who is being removed makes the next one.
func (e *entry) writeChange(ctx context.Context, tx *store.Tx) (int64, error) {
	is := e.is
	row, err := tx.RecordChange(ctx, dbgen.RecordChangeParams{
		Action: is.Action, Object: is.Object, UserID: is.UserID, Email: is.Email, Role: is.Role, DomainName: is.DomainName,
		AccessKey: is.AccessKey, ActingFor: is.ActingFor, Address: is.Address, RequestID: is.RequestID, Token: is.Token,
		Means: is.Means, Projects: e.projects, Leads: e.leads,
	})
	if err == nil && row.Written > 0 && row.Withdrawn {
		return 0, fault.Deniedf("%s has lost the right to this while the request ran", is.Email).
			WithNext("ask again; if that is refused, ask your administrator what has changed")
	}
	return row.Written, err
}

// end records what no transaction has recorded: a refusal, or something that was done without a change of rows, such as a ticket for an
// upload. What failed for another reason has changed nothing and is not recorded.
func (e *entry) end(ctx context.Context, db *store.Store, err error) {
	is := e.is
	switch {
	case err == nil && e.note.Left():
		return
	case err == nil:
		is.Result = Done
	case refused(err):
		is.Result, is.Reason = Denied, fault.Clip(store.Text(err.Error()), maxReason)
	default:
		return
	}
	e.is = is
	e.write(ctx, db)
}

// write records an entry by itself. What cannot be recorded is logged: nobody is refused for that.
func (e *entry) write(ctx context.Context, db *store.Store) {
	is := e.is
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	if err := db.Record(ctx, is); err != nil {
		db.Log().Error("could not record a use case", "action", is.Action, "object", is.Object, "result", is.Result, "user", is.Email,
			"error", err)
	}
}

// refused reports whether rights stood against a use case. Whoever may not see an object hears that there is none, so that is a refusal,
// too.
func refused(err error) bool {
	if fault.Is(err, fault.Denied) {
		return true
	}
	_, named := fault.DataOf(err).(map[string]string)
	return fault.Is(err, fault.NotFound) && named
}
