package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

// fragmentBomb is a kilobyte of GraphQL whose fields double with each level of fragments.
func fragmentBomb() string {
	var b strings.Builder
	b.WriteString("{compute_session_list(limit:100,offset:0){items{...F0}}}")
	for i := range 11 {
		fmt.Fprintf(&b, "fragment F%d on ComputeSession{dependencies{...F%d}dependencies{...F%d}}", i, i+1, i+1)
	}
	b.WriteString("fragment F11 on ComputeSession{id}")
	return b.String()
}

// TestAttackLimits is a tenant who wants the manager for themselves: with queries that cost much, with streams, with passwords.
func TestAttackLimits(t *testing.T) {
	t.Parallel()
	p := up(t)
	mallory, victim := newConsole(t, p.member("mallory")), newConsole(t, p.member("victim"))

	t.Run("a query that costs much does not keep another tenant waiting", func(t *testing.T) {
		aliases := "{"
		for i := range 1500 {
			aliases += fmt.Sprintf("a%d:compute_session_list(limit:100,offset:0){total_count}", i)
		}
		fewer := "{"
		for i := range 200 {
			fewer += fmt.Sprintf("a%d:compute_session_list(limit:100,offset:0){total_count}", i)
		}
		bombs := []string{fragmentBomb(), aliases + "}", fewer + "}"}
		require.Less(t, len(bombs[0]), 1200)
		var bombing sync.WaitGroup
		results := make(chan string, 60)
		for i := range 60 {
			bombing.Go(func() {
				body, err := json.Marshal(map[string]any{"query": bombs[i%len(bombs)]})
				if err != nil {
					results <- err.Error()
					return
				}
				status, text, err := sent(t.Context(), mallory, http.DefaultClient, "POST", "/admin/gql", string(body))
				if err != nil {
					text = err.Error()
				}
				results <- strconv.Itoa(status) + " " + text
			})
		}
		var slowest time.Duration
		for range 20 {
			began := time.Now()
			victim.send(200, "POST", "/admin/gql", `{"query":"{keypair{access_key}}"}`)
			slowest = max(slowest, time.Since(began))
		}
		bombing.Wait()
		close(results)
		for text := range results {
			require.Regexp(t, `(at most \d+ are allowed|token limit|rate-limit-exceeded)`, text,
				"every bomb is refused with the limit that it meets")
		}
		t.Logf("the victim's slowest of 20 answers took %s while 60 bombs came", slowest)
	})

	t.Run("one tenant's streams leave room for others", func(t *testing.T) {
		before := memoryOf(t, p.pid())
		ctx, end := context.WithCancel(t.Context())
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: -1}}
		var mu sync.Mutex
		open, refused := 0, map[string]int{}
		var streams sync.WaitGroup
		var asked sync.WaitGroup
		for range 1000 {
			asked.Add(1)
			streams.Go(func() {
				resp, err := begun(ctx, mallory, client, "GET", "/events/session")
				if err != nil {
					asked.Done()
					return
				}
				defer resp.Body.Close()
				text := ""
				if resp.StatusCode != 200 {
					b, _ := io.ReadAll(resp.Body)
					text = string(b)
				}
				mu.Lock()
				if resp.StatusCode == 200 {
					open++
				} else {
					refused[text]++
				}
				mu.Unlock()
				asked.Done()
				if resp.StatusCode == 200 {
					_, _ = io.Copy(io.Discard, resp.Body)
				}
			})
		}
		asked.Wait()
		after := memoryOf(t, p.pid())
		require.Equal(t, 100, open)
		require.NotEmpty(t, refused)
		for text := range refused {
			require.Contains(t, text, "you have 100 streams open")
			require.Contains(t, text, "close a stream, or ask an administrator to raise manager.streams.streams_per_user")
		}
		resp, err := begun(t.Context(), victim, client, "GET", "/events/session")
		require.NoError(t, err)
		require.Equal(t, 200, resp.StatusCode)
		_ = resp.Body.Close()
		t.Logf("100 streams of 1000 are open; the process grew by %d KiB", (after-before)>>10)
		end()
		streams.Wait()
		// What was closed makes room.
		require.Eventually(t, func() bool {
			resp, err := begun(t.Context(), mallory, client, "GET", "/events/session")
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			return resp.StatusCode == 200
		}, patience, 20*time.Millisecond)
	})

	t.Run("terminals", func(t *testing.T) {
		id := p.session("web-demo", "held")
		admin := newConsole(t, p.env())
		const many = 90
		var open []*websocket.Conn
		before := memoryOf(t, p.pid())
		for range many {
			r, err := http.NewRequestWithContext(t.Context(), "GET", admin.endpoint+"/stream/session/"+id+"/exec?cmd=sleep&cmd=1000", http.NoBody)
			require.NoError(t, err)
			api.SignRequest(r, admin.access, admin.token, time.Now())
			conn, resp, err := websocket.Dial(t.Context(), r.URL.String(), &websocket.DialOptions{HTTPHeader: r.Header, Host: r.Host})
			require.NoError(t, err)
			require.Equal(t, 101, resp.StatusCode)
			open = append(open, conn)
		}
		t.Logf("%d commands run in a session without a word; the process (manager, agent and proxies) grew by %d KiB", many,
			(memoryOf(t, p.pid())-before)>>10)
		for _, conn := range open {
			_ = conn.CloseNow()
		}
		p.must("session", "rm", "--yes", "held")
	})

	t.Run("wrong passwords lock nobody else out", func(t *testing.T) {
		var password string
		for _, line := range p.env() {
			if value, ok := strings.CutPrefix(line, "BERTH_ADMIN_PASSWORD="); ok {
				password = value
			}
		}
		login := func(from, user, word string) (int, string) {
			v := newVisitor(t, from)
			body, err := json.Marshal(map[string]string{"type": "keypair", "domain": "default", "username": user, "password": word})
			require.NoError(t, err)
			resp, err := v.client.Post(victim.endpoint+"/auth/authorize", "application/json", strings.NewReader(string(body)))
			require.NoError(t, err)
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			return resp.StatusCode, string(b)
		}
		const proxy, elsewhere = "127.0.0.7", "127.0.0.8"
		refused := ""
		for range 30 {
			status, text := login(proxy, "victim@berth.local", "guess")
			if status == 429 {
				refused = text
				break
			}
			require.Equal(t, 401, status, text)
		}
		require.Contains(t, refused, "victim@berth.local got 10 wrong passwords from address 127.0.0.7")
		for range 5 { // another account behind the same proxy, and the same account elsewhere
			status, text := login(proxy, "mallory@berth.local", "guess")
			require.Equal(t, 401, status, text)
			status, text = login(elsewhere, "victim@berth.local", "guess")
			require.Equal(t, 401, status, text)
		}
		if password != "" {
			status, text := login(proxy, "admin@berth.local", password)
			require.Equal(t, 200, status, text)
		}
		victim.send(200, "GET", "/auth", "")
	})
	p.clean()
}

// begun sends a signed request and returns its answer unread.
func begun(ctx context.Context, c *console, client *http.Client, method, target string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.endpoint+target, http.NoBody)
	if err != nil {
		return nil, err
	}
	api.SignRequest(r, c.access, c.token, time.Now())
	return client.Do(r)
}

// sent is try without an opinion about failures.
func sent(ctx context.Context, c *console, client *http.Client, method, target, body string) (status int, text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, c.endpoint+target, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", "application/json")
	api.SignRequest(r, c.access, c.token, time.Now())
	resp, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), errors.Join(err, resp.Body.Close())
}

// memoryOf is the resident memory of a process in bytes.
func memoryOf(t *testing.T, pid int) int64 {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			require.NoError(t, err)
			return n << 10
		}
	}
	t.Fatal("the process has no resident memory")
	return 0
}
