package apply_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/manager/tenancy/apply"
)

// counter stands between a store and its database and counts statements: the messages Execute and Query.
type counter struct{ statements atomic.Int64 }

// counted is the address of a database behind a counter.
func counted(b *testing.B) (dsn string, c *counter) {
	b.Helper()
	dsn = storetest.NewRelay(b, storetest.DSN(b)).DSN()
	at, err := pgx.ParseConfig(dsn)
	require.NoError(b, err)
	far := fmt.Sprintf("%s:%d", at.Host, at.Port)
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it ends with the benchmark
	require.NoError(b, err)
	b.Cleanup(func() { _ = l.Close() })
	c = &counter{}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go c.pass(near, far)
		}
	}()
	port := func(n int) string { return fmt.Sprintf("port=%d ", n) }
	return strings.Replace(dsn, port(int(at.Port)), port(l.Addr().(*net.TCPAddr).Port), 1), c
}

func (c *counter) pass(near net.Conn, addr string) {
	far, err := net.Dial("tcp", addr) //nolint:noctx // it ends with the benchmark
	if err != nil {
		_ = near.Close()
		return
	}
	go func() { _, _ = io.Copy(near, far); _ = near.Close() }()
	defer func() { _ = far.Close() }()
	in, out := bufio.NewReaderSize(near, 64<<10), bufio.NewWriterSize(far, 64<<10)
	for started := false; ; started = true {
		head := make([]byte, 5)
		if !started {
			head = head[:4] // the first message has no type
		}
		if _, err := io.ReadFull(in, head); err != nil {
			return
		}
		if started && (head[0] == 'E' || head[0] == 'Q') {
			c.statements.Add(1)
		}
		size := int64(binary.BigEndian.Uint32(head[len(head)-4:])) - 4
		_, err := out.Write(head)
		_, copied := io.CopyN(out, in, size)
		if errors.Join(err, copied) != nil || in.Buffered() == 0 && out.Flush() != nil {
			return
		}
	}
}

// BenchmarkImport makes a thousand users by a table: without passwords, and with passwords at their real cost.
func BenchmarkImport(b *testing.B) {
	const n = 1000
	for _, name := range []string{"without-passwords", "with-passwords"} {
		b.Run(name, func(b *testing.B) {
			dsn, c := counted(b)
			d := managertest.Deps(b, storetest.Open(b, dsn))
			d.PasswordCost = seal.Cost{} // as in production
			w := managertest.On(b, d)
			round := 0
			before := c.statements.Load()
			for b.Loop() {
				var text strings.Builder
				text.WriteString("email,full_name,projects\n")
				for i := range n {
					fmt.Fprintf(&text, "u%d-%d@example.org,User %d,default\n", round, i, i)
				}
				round++
				p, err := w.Tenancies.Plan(b.Context(), w.Admin, apply.Request{Format: apply.CSV, Text: text.String()})
				require.NoError(b, err)
				all := steps(p.Changes)
				for i := range all {
					if name == "with-passwords" && all[i].Make {
						all[i].Password = new(seal.Secret(fmt.Sprintf("correct horse %d battery", i)))
					}
				}
				for part := range slices.Chunk(all, 50) {
					results, err := w.Tenancies.Apply(b.Context(), w.Admin, part)
					require.NoError(b, err)
					for _, r := range results {
						require.NoError(b, r.Err)
					}
				}
			}
			b.ReportMetric(float64(c.statements.Load()-before)/float64(b.N*n), "statements/user")
			b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "users/s")
		})
	}
}
