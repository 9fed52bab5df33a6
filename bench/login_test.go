package bench_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/testkit"
)

// BenchmarkLoginFlood compares the 99th percentile of signed requests while a thousand logins a second arrive, from one address and from
// many, with that of a quiet manager. The goal is twice at most. Passwords cost what they cost in production. The attacker is a process of
// its own with the lowest priority, as attackers bring their own processors.
func BenchmarkLoginFlood(b *testing.B) {
	for _, addresses := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("addresses=%d", addresses), func(b *testing.B) { benchLoginFlood(b, addresses) })
	}
}

func benchLoginFlood(b *testing.B, addresses int) {
	const asks = 3000
	c := testkit.New(b, testkit.Options{Quiet: true, PasswordCost: seal.DefaultCost(),
		Manager: func(c *manager.Config) { c.TrustedProxies = []string{"127.0.0.1"} }})
	client := c.Client()
	p99 := func() time.Duration {
		took := make([]time.Duration, asks)
		for i := range took {
			began := time.Now()
			require.NoError(b, client.Get(b.Context(), "/auth/test", nil, nil))
			took[i] = time.Since(began)
		}
		slices.Sort(took)
		return took[asks*99/100]
	}
	attacker := newRole(b, "logins", "TO="+client.Config().Endpoint, "ADDRESSES="+strconv.Itoa(addresses))
	require.NoError(b, syscall.Setpriority(syscall.PRIO_PROCESS, attacker.cmd.Process.Pid, 19))
	answered := func() (n int) {
		attacker.ask(b, &n, "answered")
		return n
	}
	for b.Loop() {
		p99()
		quiet := p99()
		attacker.ask(b, nil, "begin")
		before, began := answered(), time.Now()
		loud := p99()
		took := time.Since(began)
		after := answered()
		attacker.ask(b, nil, "end")
		b.ReportMetric(float64(after-before)/took.Seconds(), "logins/s")
		b.ReportMetric(float64(quiet.Microseconds()), "quiet-p99-µs")
		b.ReportMetric(float64(loud.Microseconds()), "flood-p99-µs")
		b.ReportMetric(float64(loud)/float64(quiet), "ratio")
	}
}

// runLogins is the attacker of BenchmarkLoginFlood: it sends a thousand wrong passwords a second between begin and end.
func runLogins(t *testing.T) map[string]func([]string) (any, error) {
	addresses, err := strconv.Atoi(os.Getenv("BERTH_ROLE_ADDRESSES"))
	require.NoError(t, err)
	from := make([]string, addresses)
	at := netip.MustParseAddr("10.0.0.1")
	for i := range from {
		from[i], at = at.String(), at.Next()
	}
	f := &flood{to: os.Getenv("BERTH_ROLE_TO") + "/auth/authorize", from: from,
		places: make(chan struct{}, 500), // a client that waits for no answer is no client
		client: http.Transport{MaxIdleConnsPerHost: 500}}
	return map[string]func([]string) (any, error){
		"begin": func([]string) (any, error) {
			ctx, stop := context.WithCancel(t.Context())
			f.stop = stop
			f.under.Go(func() { f.run(ctx) })
			return nil, nil
		},
		"answered": func([]string) (any, error) { return f.answered.Load(), nil },
		"end": func([]string) (any, error) {
			f.stop()
			f.under.Wait()
			return nil, nil
		},
	}
}

// flood sends logins.
type flood struct {
	to       string
	from     []string
	client   http.Transport
	places   chan struct{}
	sent     int
	answered atomic.Int64
	under    sync.WaitGroup
	stop     context.CancelFunc
}

func (f *flood) run(ctx context.Context) {
	const each, every = 10, 10 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for range each {
			select {
			case f.places <- struct{}{}:
			default:
				continue
			}
			f.sent++
			number := f.sent
			f.under.Go(func() {
				defer func() { <-f.places }()
				f.send(ctx, number)
			})
		}
	}
}

func (f *flood) send(ctx context.Context, number int) {
	body := fmt.Sprintf(`{"username":"user%d@x.org","password":"guess"}`, number%1000)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, f.to, strings.NewReader(body))
	if err != nil {
		return
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Forwarded-For", f.from[number%len(f.from)])
	resp, err := f.client.RoundTrip(r)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	f.answered.Add(1)
}
