package bench_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/appproxy/forward"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/proxy"
)

// runProxy serves circuits: hosts files.bench (nginx with files), echo.bench (WebSockets), and cN.bench for many more of the
// latter; and a raw port to the sink.
func runProxy(t *testing.T, said map[string]string) {
	raise(t)
	addr := map[string]string{"files": os.Getenv("BERTH_ROLE_FILES"), "echo": os.Getenv("BERTH_ROLE_ECHO"), "raw": os.Getenv("BERTH_ROLE_RAW")}
	many, _ := strconv.Atoi(os.Getenv("BERTH_ROLE_CIRCUITS"))
	var circuits []proxy.Circuit
	add := func(label string, n int) {
		circuits = append(circuits, proxy.Circuit{ID: fmt.Sprintf("00000000-0000-0000-0000-%012d", n), Revision: 1, Mode: proxy.ModeSubdomain,
			Label: label, Protocol: "http", Public: true, Targets: []proxy.Target{{Kernel: "k", Port: 1, Weight: 1}}})
	}
	for i, label := range []string{"files", "echo", "raw"} {
		add(label, i)
	}
	for i := range many {
		add(fmt.Sprint("c", i), 100+i)
	}
	var none *circuit.Table
	table, _ := none.With(circuit.Change{Reset: true, Put: circuits, Keys: [][]byte{[]byte("bench")}})
	dial := func(ctx context.Context, c *circuit.Circuit, _ proxy.Target) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", cmp.Or(addr[c.Label], addr["echo"]))
		if err != nil {
			return nil, fault.Unavailablef("the app does not listen").WithCause(err)
		}
		return conn, nil
	}
	keys := table.Keys()
	router := func(h forward.Head) forward.Route { // what the role does, in short
		label, _, _ := strings.Cut(h.Host, ".")
		c := table.ByLabel(label)
		if c == nil {
			return forward.Route{Handler: http.NotFoundHandler()}
		}
		v := c.Admit(keys, circuit.Visitor{At: time.Now(), Addr: h.Client, Method: h.Method, Upgrade: h.Upgrade != "", Bearer: "",
			HeaderOrigin: h.Header.Get("Origin"), FetchSite: h.Header.Get("Sec-Fetch-Site"), FetchMode: h.Header.Get("Sec-Fetch-Mode")})
		if v.Decision != circuit.Pass {
			return forward.Route{Handler: http.NotFoundHandler()}
		}
		return forward.Route{Circuit: c, User: v.User}
	}
	cfg := forward.DefaultConfig()
	cfg.ConnectionsPerAddress, cfg.ConnectionsPerCircuit = 0, 0
	cfg.RequestsPerAddress, cfg.RequestsPerCircuit, cfg.RequestsPerUser = 1e7, 1e7, 1e7 // counted, not met
	e := forward.New(cfg, router, dial, chassis.RealClock(), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = e.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	listen := func(name string, each func(net.Conn)) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		said[name] = l.Addr().String()
		go accept(l, each)
	}
	listen("http", func(c net.Conn) { e.ServeConn(ctx, c, forward.Listener{}) })
	listen("tcp", func(c net.Conn) { e.ServeTCP(ctx, c, table.ByLabel("raw")) })
	said["pid"] = strconv.Itoa(os.Getpid())
}

// runEcho serves what the proxies lead to: WebSockets that echo, and a port that sends as many bytes as it is asked for.
func runEcho(t *testing.T, said map[string]string) {
	raise(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, text, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, text) != nil {
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	said["echo"] = s.Listener.Addr().String()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	said["raw"] = l.Addr().String()
	go accept(l, func(c net.Conn) {
		defer c.Close()
		var ask [8]byte
		piece := make([]byte, 256<<10)
		for {
			if _, err := io.ReadFull(c, ask[:]); err != nil {
				return
			}
			for left := int64(binary.BigEndian.Uint64(ask[:])); left > 0; {
				n, err := c.Write(piece[:min(left, int64(len(piece)))])
				if err != nil {
					return
				}
				left -= int64(n)
			}
		}
	})
}

func accept(l net.Listener, each func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go each(c)
	}
}

// raise lifts the bound of open files as far as it goes.
func raise(t testing.TB) {
	var r unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &r))
	r.Cur = r.Max
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &r))
}

// nginxWith runs nginx with one worker, and the given servers in its http section; %s there is the address.
func nginxWith(b *testing.B, servers string) (address string, pid int) {
	b.Helper()
	bin, err := exec.LookPath("nginx")
	if err != nil {
		b.Skip("needs nginx: scripts/install-deps.sh bench")
	}
	address = "127.0.0.1:" + closedPort(b)
	work := b.TempDir()
	conf := filepath.Join(work, "nginx.conf")
	require.NoError(b, os.WriteFile(conf, fmt.Appendf(nil,
		`daemon off; master_process off; worker_processes 1; worker_rlimit_nofile 20000; pid %[1]s/pid; error_log %[1]s/error.log;
events { worker_connections 16000; }
http { access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000; default_type application/octet-stream;
client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p;
fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s; map $http_upgrade $wants { default upgrade; '' ''; }
%[2]s }
`, work, strings.ReplaceAll(servers, "%s", address)), 0o644))
	c := exec.Command(bin, "-c", conf, "-p", work)
	c.Stderr = os.Stderr
	require.NoError(b, c.Start())
	b.Cleanup(func() { _ = c.Process.Signal(unix.SIGTERM); _ = c.Wait() })
	answering(b, address)
	return address, c.Process.Pid
}

// proxies are ours and nginx before the same upstreams.
type proxies struct {
	b             *testing.B
	files         string
	ours, peer    string
	tcp, raw      string
	pid, peerPID  int
	echo, proxied *role
}

func newProxies(b *testing.B, circuits int) *proxies {
	b.Helper()
	if os.Getenv("BERTH_BENCH") == "" {
		b.Skip("run make bench")
	}
	root, err := os.MkdirTemp("", "berth-proxy-")
	require.NoError(b, err)
	b.Cleanup(func() { _ = os.RemoveAll(root) })
	require.NoError(b, os.Chmod(root, 0o755)) // nginx has another user
	for name, size := range map[string]int{"1k": 1 << 10, "256k": 256 << 10} {
		require.NoError(b, os.WriteFile(filepath.Join(root, name), make([]byte, size), 0o644))
	}
	p := &proxies{b: b}
	p.files, _ = nginxWith(b, "server { listen %s; root "+root+"; }")
	p.echo = newRole(b, "echo")
	p.raw = p.echo.said["raw"]
	p.proxied = newRole(b, "proxy", "FILES="+p.files, "ECHO="+p.echo.said["echo"], "RAW="+p.raw, "CIRCUITS="+strconv.Itoa(circuits))
	p.ours, p.tcp = p.proxied.said["http"], p.proxied.said["tcp"]
	p.pid, err = strconv.Atoi(p.proxied.said["pid"])
	require.NoError(b, err)
	p.peer, p.peerPID = nginxWith(b, `upstream files { server `+p.files+`; keepalive 64; } upstream echo { server `+p.echo.said["echo"]+`; }
server { listen %s; server_name files.bench; location / { proxy_pass http://files; proxy_http_version 1.1;
proxy_set_header Connection ''; proxy_set_header Host $host; proxy_set_header X-Forwarded-For $remote_addr; } }
server { listen %s; server_name *.bench; location / { proxy_pass http://echo; proxy_http_version 1.1;
proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $wants; proxy_set_header Host $host; } }`)
	return p
}

// load is one round of wrk.
type load struct {
	rate     float64       // requests per second
	cpu      time.Duration // of the proxy, per request
	p50, p99 time.Duration
}

var (
	wrkRequests = regexp.MustCompile(`(\d+) requests in ([\d.]+)(s|m)`)
	wrkPercent  = regexp.MustCompile(`(50|99)%\s+([\d.]+)(us|ms|s)`)
)

func (p *proxies) wrk(address, path string, pid, connections int, seconds int) load {
	p.b.Helper()
	bin, err := exec.LookPath("wrk")
	if err != nil {
		p.b.Skip("needs wrk: scripts/install-deps.sh bench")
	}
	before := cpuOf(pid, false)
	out, err := exec.Command(bin, "-t1", "-c"+strconv.Itoa(connections), "-d"+strconv.Itoa(seconds)+"s", "--latency", "-H",
		"Host: files.bench",
		"-H", "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "-H", "Accept: */*", "-H",
		"Accept-Language: en", "-H", "Cookie: _xsrf=2|d0b1c1c0|6f5c; theme=dark",
		"http://"+address+"/"+path).CombinedOutput()
	require.NoError(p.b, err, "%s", out)
	cpu := cpuOf(pid, false) - before
	require.NotContains(p.b, string(out), "Non-2xx")
	require.NotContains(p.b, string(out), "Socket errors")
	m := wrkRequests.FindSubmatch(out)
	require.NotNil(p.b, m, "%s", out)
	n, _ := strconv.ParseFloat(string(m[1]), 64)
	l := load{rate: n / float64(seconds), cpu: time.Duration(float64(cpu) / n)}
	for _, m := range wrkPercent.FindAllSubmatch(out, -1) {
		d, err := time.ParseDuration(string(m[2]) + string(m[3]))
		require.NoError(p.b, err)
		if string(m[1]) == "50" {
			l.p50 = d
		} else {
			l.p99 = d
		}
	}
	return l
}

// middle is the round with the median CPU time.
func middle(rounds []load) load {
	s := slices.SortedFunc(slices.Values(rounds), func(a, b load) int { return cmp.Compare(a.cpu, b.cpu) })
	return s[len(s)/2]
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// BenchmarkProxyHTTP compares with nginx as a reverse proxy with kept connections to the same upstream: small and large files.
func BenchmarkProxyHTTP(b *testing.B) {
	p := newProxies(b, 0)
	n := setting("BERTH_BENCH_ROUNDS", 5)
	seconds := setting("BERTH_BENCH_SECONDS", 3)
	for _, path := range []string{"1k", "256k"} {
		var ours, peer []load
		for i := range n + 1 {
			l1 := p.wrk(p.ours, path, p.pid, 32, seconds)
			l2 := p.wrk(p.peer, path, p.peerPID, 32, seconds)
			if i == 0 {
				continue // the first round warms both
			}
			ours, peer = append(ours, l1), append(peer, l2)
		}
		o, q := middle(ours), middle(peer)
		fmt.Printf("proxy %s: %.1f us CPU per request, nginx %.1f us, ratio %.2f (less is better); %.0f/s, nginx %.0f/s; "+
			"p50 %.2f ms p99 %.2f ms, nginx %.2f ms %.2f ms\n", path,
			us(o.cpu), us(q.cpu), us(o.cpu)/us(q.cpu), o.rate, q.rate, ms(o.p50), ms(o.p99), ms(q.p50), ms(q.p99))
	}
}

// webSocket opens one and returns a function that sends 128 bytes and reads them back.
func webSocket(b *testing.B, address, host string) (echo func() error, closed func()) {
	b.Helper()
	c, err := net.Dial("tcp", address)
	require.NoError(b, err)
	_, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+host+
		"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	require.NoError(b, err)
	r := bufio.NewReaderSize(c, 512)
	res, err := http.ReadResponse(r, nil)
	require.NoError(b, err)
	require.Equal(b, http.StatusSwitchingProtocols, res.StatusCode)
	frame := append([]byte{0x82, 0x80 | 126, 0, 128, 0, 0, 0, 0}, make([]byte, 128)...) // masked with zeros
	back := make([]byte, 4+128)
	return func() error {
		if _, err := c.Write(frame); err != nil {
			return err
		}
		_, err := io.ReadFull(r, back)
		return err
	}, func() { _ = c.Close() }
}

// echoes has every connection send its next message as soon as the last one is back.
func (p *proxies) echoes(address string, pid, connections int, d time.Duration) load {
	p.b.Helper()
	var count atomic.Int64
	var mu sync.Mutex
	var times []time.Duration
	echo := make([]func() error, connections)
	for i := range echo {
		var closed func()
		echo[i], closed = webSocket(p.b, address, "echo.bench")
		defer closed()
	}
	before := cpuOf(pid, false)
	end := time.Now().Add(d)
	var all sync.WaitGroup
	for _, one := range echo {
		all.Go(func() {
			var mine []time.Duration
			for time.Now().Before(end) {
				began := time.Now()
				if one() != nil {
					return
				}
				mine = append(mine, time.Since(began))
			}
			count.Add(int64(len(mine)))
			mu.Lock()
			times = append(times, mine...)
			mu.Unlock()
		})
	}
	all.Wait()
	cpu := cpuOf(pid, false) - before
	slices.Sort(times)
	return load{rate: float64(count.Load()) / d.Seconds(), cpu: cpu / time.Duration(max(count.Load(), 1)), p50: times[len(times)/2],
		p99: times[len(times)*99/100]}
}

// BenchmarkProxyWebSocket compares 128-byte echoes with nginx.
func BenchmarkProxyWebSocket(b *testing.B) {
	p := newProxies(b, 0)
	n := setting("BERTH_BENCH_ROUNDS", 5)
	d := time.Duration(setting("BERTH_BENCH_SECONDS", 3)) * time.Second
	var ours, peer []load
	for i := range n + 1 {
		l1, l2 := p.echoes(p.ours, p.pid, 32, d), p.echoes(p.peer, p.peerPID, 32, d)
		if i > 0 {
			ours, peer = append(ours, l1), append(peer, l2)
		}
	}
	o, q := middle(ours), middle(peer)
	fmt.Printf("proxy websocket: %.1f us CPU per echo, nginx %.1f us, ratio %.2f (less is better); %.0f/s, nginx %.0f/s; "+
		"p50 %.2f ms p99 %.2f ms, nginx %.2f ms %.2f ms\n",
		us(o.cpu), us(q.cpu), us(o.cpu)/us(q.cpu), o.rate, q.rate, ms(o.p50), ms(o.p99), ms(q.p50), ms(q.p99))
}

// BenchmarkProxyTCP compares one raw stream through the proxy with the same one without.
func BenchmarkProxyTCP(b *testing.B) {
	p := newProxies(b, 0)
	const size = 2 << 30
	stream := func(address string) (wall time.Duration) {
		c, err := net.Dial("tcp", address)
		require.NoError(b, err)
		defer c.Close()
		ask := make([]byte, 8)
		binary.BigEndian.PutUint64(ask, size)
		buf := make([]byte, 1<<20)
		return timed(func() {
			_, err := c.Write(ask)
			require.NoError(b, err)
			for left := int64(size); left > 0; {
				n, err := c.Read(buf)
				require.NoError(b, err)
				left -= int64(n)
			}
		})
	}
	n := setting("BERTH_BENCH_ROUNDS", 5)
	var ours, direct []time.Duration
	var cpus []time.Duration
	for i := range n + 1 {
		before := cpuOf(p.pid, false)
		t1 := stream(p.tcp)
		cpu := cpuOf(p.pid, false) - before
		t2 := stream(p.raw)
		if i > 0 {
			ours, direct, cpus = append(ours, t1), append(direct, t2), append(cpus, cpu)
		}
	}
	rate := func(d time.Duration) float64 { return size / 1e6 / d.Seconds() }
	fmt.Printf("proxy tcp: %.0f MB/s, direct %.0f MB/s, ratio %.2f (1 is equal, more is better); proxy CPU per GiB %.2f s\n",
		rate(median(ours)), rate(median(direct)), median(direct).Seconds()/median(ours).Seconds(), median(cpus).Seconds()/2)
}

// BenchmarkProxyMany holds 5,000 WebSockets open over 10,000 circuits and echoes on all of them in turn.
func BenchmarkProxyMany(b *testing.B) {
	raise(b)
	const circuits, open = 10000, 5000
	p := newProxies(b, circuits)
	empty := resident(p.pid)
	echo := make([]func() error, open)
	for i := range echo {
		var closed func()
		echo[i], closed = webSocket(b, p.ours, fmt.Sprintf("c%d.bench", i*circuits/open))
		b.Cleanup(closed)
		require.NoError(b, echo[i]())
	}
	held := resident(p.pid)
	before := cpuOf(p.pid, false)
	var times []time.Duration
	for range 4 {
		for _, one := range echo {
			times = append(times, timed(func() { require.NoError(b, one()) }))
		}
	}
	cpu := cpuOf(p.pid, false) - before
	slices.Sort(times)
	idleBefore := cpuOf(p.pid, false)
	wait(b, 5*time.Second)
	idle := cpuOf(p.pid, false) - idleBefore
	fmt.Printf("proxy many: %d circuits, %d open websockets: %d MiB resident, %d MiB without connections, %.1f KiB each; "+
		"echo one at a time p50 %.3f ms p99 %.3f ms, %.1f us CPU; idle %.1f %% of a core\n",
		circuits, open, held>>20, empty>>20, float64(held-empty)/open/1024, ms(times[len(times)/2]), ms(times[len(times)*99/100]),
		us(cpu)/float64(len(times)), idle.Seconds()/5*100)
}

// resident is a process's memory in bytes.
func resident(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if f := strings.Fields(string(text)); len(f) > 1 {
		n, _ := strconv.ParseInt(f[1], 10, 64)
		return n * int64(os.Getpagesize())
	}
	return 0
}
