package store

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store/dbgen"
)

const (
	// outagePatience is how long into an outage those wait who can: reads, and transactions that have not begun. Who comes later is
	// told at once.
	outagePatience = 5 * time.Second
	// connectTimeout bounds one attempt to connect; deadAfter is when a server that acknowledges nothing counts as dead.
	connectTimeout = 5 * time.Second
	deadAfter      = 15 * time.Second
	// statementPatience bounds one statement. A server may hold its connections and say nothing: a process that is stopped, a disk that
	// hangs. Whoever asks must not wait for it with a connection of the pool.
	statementPatience = 30 * time.Second
	// transactions have so many times as long.
	transactionFactor = 4
)

// away makes the error of a database that cannot be used now.
func away(cause error, text string) error {
	return fault.Unavailablef("%s", text).WithReason(fault.DatabaseAway).WithCause(cause).WithNext("try again in a moment")
}

// unusable tells in words why PostgreSQL cannot serve a statement now although nothing is wrong with the statement.
func unusable(code string) string {
	switch code {
	case "25006":
		return "PostgreSQL takes no writes now (it is read-only, or a standby)"
	case "53100":
		return "the disk of PostgreSQL is full"
	case "53200":
		return "PostgreSQL is out of memory"
	case "53300":
		return "PostgreSQL takes no more connections"
	case "57P01", "57P02", "57P03", "57P05", "25P03":
		return "PostgreSQL does not answer"
	case "58030":
		return "PostgreSQL cannot use its disk"
	}
	if strings.HasPrefix(code, "08") { // connections
		return "PostgreSQL does not answer"
	}
	return ""
}

// disconnected reports that there is no connection (any more) to PostgreSQL.
func disconnected(err error) bool {
	var ce *pgconn.ConnectError
	var ne net.Error
	if errors.As(err, &ce) || errors.As(err, &ne) || pgconn.SafeToRetry(err) {
		return true
	}
	for _, broken := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, broken) {
			return true
		}
	}
	return false
}

// wrap makes faults of the failures that a caller can do something about. Everything that comes out of this package has passed it.
func wrap(err error) error {
	var fe *fault.Error
	if err == nil || errors.As(err, &fe) || errors.Is(err, pgx.ErrNoRows) || errors.Is(err, context.Canceled) {
		return err
	}
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		if text := unusable(pe.Code); text != "" {
			return away(err, text)
		}
		switch pe.Code {
		case "40001", "40P01", "55P03":
			return fault.Conflictf("the rows are being changed by others").WithCause(err)
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return away(err, "PostgreSQL did not answer in time")
	case disconnected(err):
		return away(err, "PostgreSQL does not answer")
	}
	return err
}

// Away reports that PostgreSQL cannot be used now.
func Away(err error) bool { return fault.ReasonOf(err) == fault.DatabaseAway }

// outage notes since when nothing reaches PostgreSQL.
type outage struct {
	patience time.Duration
	mu       sync.Mutex
	since    time.Time
}

// saw notes an outcome and reports whether whoever has not begun anything may wait for the end of an outage.
func (o *outage) saw(err error) (wait bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !Away(err) {
		o.since = time.Time{}
		return false
	}
	if o.since.IsZero() {
		o.since = time.Now()
	}
	return time.Since(o.since) < o.patience
}

// patiently calls fn, which changes nothing, until PostgreSQL is there, the outage has lasted for long, or ctx ends.
func (o *outage) patiently(ctx context.Context, fn func() error) error {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		err := wrap(fn())
		if !o.saw(err) || ctx.Err() != nil || !disconnected(err) && !refusesConnections(err) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// refusesConnections reports that the server is starting, stopping or full.
func refusesConnections(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && (strings.HasPrefix(pe.Code, "57P") || pe.Code == "53300")
}

// translated is access to PostgreSQL whose errors have passed wrap. Reads wait for the end of a short outage.
type translated struct {
	db       dbgen.DBTX
	outage   *outage // nil within a transaction, whose connection does not come back
	patience time.Duration
}

// reads reports that a statement only reads, so that it may be sent again.
func reads(sql string) bool {
	for {
		sql = strings.TrimLeft(sql, " \t\r\n")
		if !strings.HasPrefix(sql, "--") {
			break
		}
		_, rest, ok := strings.Cut(sql, "\n")
		if !ok {
			return false
		}
		sql = rest
	}
	return len(sql) > 6 && strings.EqualFold(sql[:6], "SELECT") && !strings.Contains(sql, " FOR ")
}

func (t *translated) do(ctx context.Context, sql string, fn func() error) error {
	switch {
	case t.outage == nil:
		return wrap(fn())
	case reads(sql):
		return t.outage.patiently(ctx, fn)
	}
	err := written(fn())
	t.outage.saw(err)
	return err
}

// Exec implements dbgen.DBTX.
func (t *translated) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()
	err = t.do(ctx, sql, func() (err error) { tag, err = t.db.Exec(ctx, sql, args...); return err })
	return tag, err
}

// Query implements dbgen.DBTX.
func (t *translated) Query(ctx context.Context, sql string, args ...any) (rows pgx.Rows, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.patience)
	err = t.do(ctx, sql, func() (err error) { rows, err = t.db.Query(ctx, sql, args...); return err })
	if err != nil {
		cancel()
		return rows, err
	}
	return translatedRows{rows, t.outage != nil && !reads(sql), cancel}, nil
}

// QueryRow implements dbgen.DBTX.
func (t *translated) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return translatedRow(func(dest ...any) error {
		ctx, cancel := context.WithTimeout(ctx, t.patience)
		defer cancel()
		return t.do(ctx, sql, func() error { return t.db.QueryRow(ctx, sql, args...).Scan(dest...) })
	})
}

type translatedRow func(dest ...any) error

// Scan sends the query and reads its row.
func (r translatedRow) Scan(dest ...any) error { return r(dest...) }

type translatedRows struct {
	pgx.Rows
	writes bool // the statement is a transaction of its own
	cancel context.CancelFunc
}

// Close implements pgx.Rows.
func (r translatedRows) Close() {
	r.Rows.Close()
	r.cancel()
}

// Err implements pgx.Rows.
func (r translatedRows) Err() error {
	if r.writes {
		return written(r.Rows.Err())
	}
	return wrap(r.Rows.Err())
}

// Scan implements pgx.Rows.
func (r translatedRows) Scan(dest ...any) error { return wrap(r.Rows.Scan(dest...)) }

// errUnknown says that the connection broke before the server told what became of a commit.
var errUnknown = errors.New("it is not known whether the change was stored")

// Unknown reports that a transaction, or a statement that is one by itself, may have been committed or not, because the connection broke
// before the answer came. What it did must be found out before it is done again.
func Unknown(err error) bool { return errors.Is(err, errUnknown) }

// written translates the error of a commit, or of a statement that is a transaction of its own.
func written(err error) error {
	var pe *pgconn.PgError
	var ce *pgconn.ConnectError
	switch {
	case err == nil, errors.As(err, &ce): // nothing was sent
	case errors.Is(err, pgconn.ErrConnClosed):
		// pgx calls it safe to retry, but says it also of a connection that broke after a COMMIT was sent.
		return away(errors.Join(errUnknown, err), "PostgreSQL did not answer")
	case pgconn.SafeToRetry(err): // nothing was sent
	case errors.As(err, &pe) && pe.SeverityUnlocalized == "ERROR": // it was refused
	case errors.Is(err, context.DeadlineExceeded), disconnected(err), pe != nil && unusable(pe.Code) != "":
		return away(errors.Join(errUnknown, err), "PostgreSQL did not answer")
	}
	return wrap(err)
}

// noticeDeadServers bounds how long a server is waited for that vanished without a word.
func noticeDeadServers(c *pgx.ConnConfig) {
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	dialer := &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: deadAfter / 3, Interval: deadAfter / 3, Count: 2},
		Control: func(network, _ string, conn syscall.RawConn) error {
			if !strings.HasPrefix(network, "tcp") {
				return nil
			}
			var failed error
			err := conn.Control(func(fd uintptr) {
				failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadAfter.Milliseconds()))
			})
			return errors.Join(err, failed)
		},
	}
	c.DialFunc = dialer.DialContext
}
