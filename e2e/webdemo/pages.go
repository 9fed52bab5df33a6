package main

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/coder/websocket"
)

// Bounds of what a request may ask for.
const (
	maxBytes = 16 << 30
	maxWait  = 10 * time.Minute
	maxFrame = 16 << 20
)

//go:embed index.html
var indexPage []byte

//go:embed attack.html
var attackPage []byte

func pages() http.Handler {
	mux := http.NewServeMux()
	page := func(b []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = w.Write(b)
		}
	}
	mux.HandleFunc("GET /{$}", page(indexPage))
	mux.HandleFunc("GET /attack", page(attackPage))
	mux.HandleFunc("/headers", headers)
	mux.HandleFunc("GET /ws", wsEcho)
	mux.HandleFunc("GET /sse", ticker)
	mux.HandleFunc("GET /bytes", download)
	mux.HandleFunc("GET /slow", slow)
	mux.HandleFunc("POST /upload", upload)
	mux.HandleFunc("PUT /upload", upload)
	mux.HandleFunc("POST /echo", echoBody)
	mux.HandleFunc("GET /cookies", cookies)
	mux.HandleFunc("GET /redirect", redirect)
	mux.HandleFunc("GET /trailers", trailers)
	mux.HandleFunc("GET /hop", hop)
	mux.HandleFunc("GET /raw", raw)
	mux.HandleFunc("GET /cut", cut)
	mux.HandleFunc("/status", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(int(min(max(number(r, "code", 200), 200), 599)))
	})
	return mux
}

// number reads a query parameter; what is no number counts as missing.
func number(r *http.Request, name string, missing int64) int64 {
	n, err := strconv.ParseInt(r.URL.Query().Get(name), 10, 64)
	if err != nil || n < 0 {
		return missing
	}
	return n
}

// milliseconds reads a bounded duration.
func milliseconds(r *http.Request, name string, missing int64) time.Duration {
	return min(time.Duration(number(r, name, missing))*time.Millisecond, maxWait)
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// Seen is what the app sees of a request.
type Seen struct {
	PID     int                 `json:"pid"`
	Method  string              `json:"method"`
	Host    string              `json:"host"`
	Target  string              `json:"target"` // as on the request line
	Proto   string              `json:"proto"`
	Remote  string              `json:"remote"`
	Headers map[string][]string `json:"headers"`
	Length  int64               `json:"length"`
	Body    string              `json:"body,omitempty"` // its first 4 KiB
}

func headers(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 4<<10))
	reply(w, Seen{os.Getpid(), r.Method, r.Host, r.RequestURI, r.Proto, r.RemoteAddr, r.Header, r.ContentLength, string(body)})
}

// wsEcho sends every message back. It accepts any origin: to check that is the proxy's part of the tests. ?subprotocol= is
// chosen when the client offers it.
func wsEcho(w http.ResponseWriter, r *http.Request) {
	options := &websocket.AcceptOptions{InsecureSkipVerify: true}
	if s := r.URL.Query().Get("subprotocol"); s != "" {
		options.Subprotocols = []string{s}
	}
	c, err := websocket.Accept(w, r, options)
	if err != nil {
		return
	}
	defer func() { _ = c.CloseNow() }()
	c.SetReadLimit(maxFrame)
	for {
		kind, message, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if string(message) == "close please" {
			_ = c.Close(4001, "as you wish")
			return
		}
		if err := c.Write(r.Context(), kind, message); err != nil {
			return
		}
	}
}

// ticker sends ?n= events (0: without end), one each ?every= milliseconds.
func ticker(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	flush := http.NewResponseController(w)
	n, every := number(r, "n", 0), max(milliseconds(r, "every", 1000), time.Millisecond)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := int64(1); n == 0 || i <= n; i++ {
		if _, err := fmt.Fprintf(w, "id: %d\nevent: tick\ndata: %d\n\n", i, i); err != nil || flush.Flush() != nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}

// pattern is what downloads consist of: 64 KiB of bytes that do not compress well.
var pattern = func() []byte {
	b := make([]byte, 0, 64<<10)
	for sum := sha256.Sum256([]byte("webdemo")); len(b) < cap(b); sum = sha256.Sum256(sum[:]) {
		b = append(b, sum[:]...)
	}
	return b
}()

// download sends ?n= bytes, with ?chunked=1 without saying how many.
func download(w http.ResponseWriter, r *http.Request) {
	n := min(number(r, "n", 1<<10), maxBytes)
	w.Header().Set("Content-Type", "application/octet-stream")
	if r.URL.Query().Get("chunked") == "" {
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	}
	for n > 0 {
		k := min(n, int64(len(pattern)))
		if _, err := w.Write(pattern[:k]); err != nil {
			return
		}
		n -= k
	}
}

// slow answers its head after ?head= and then each of ?n= lines after ?line= milliseconds.
func slow(w http.ResponseWriter, r *http.Request) {
	wait := func(d time.Duration) bool {
		select {
		case <-time.After(d):
			return true
		case <-r.Context().Done():
			return false
		}
	}
	if !wait(milliseconds(r, "head", 0)) {
		return
	}
	flush := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	_ = flush.Flush()
	for i := range number(r, "n", 1) {
		if !wait(milliseconds(r, "line", 1000)) {
			return
		}
		if _, err := fmt.Fprintf(w, "line %d\n", i+1); err != nil || flush.Flush() != nil {
			return
		}
	}
}

func upload(w http.ResponseWriter, r *http.Request) {
	hash := sha256.New()
	n, err := io.Copy(hash, r.Body)
	out := map[string]any{"bytes": n, "sha256": hex.EncodeToString(hash.Sum(nil)), "declared": r.ContentLength}
	if err != nil {
		out["error"] = err.Error()
	}
	if len(r.Trailer) > 0 {
		out["trailers"] = r.Trailer
	}
	reply(w, out)
}

// echoBody answers while the request's body still comes in.
func echoBody(w http.ResponseWriter, r *http.Request) {
	c := http.NewResponseController(w)
	_ = c.EnableFullDuplex()
	w.WriteHeader(http.StatusOK)
	_ = c.Flush()
	b := make([]byte, 32<<10)
	for {
		n, err := r.Body.Read(b)
		if n > 0 {
			if _, err := w.Write(b[:n]); err != nil || c.Flush() != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cookies sets good and bad cookies: two of one name, one for the ?domain= that is wider than the app's host, and one of
// each ?name=, as if the app were the platform.
func cookies(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Add("Set-Cookie", "twin=first; Path=/")
	h.Add("Set-Cookie", "twin=second; Path=/twin")
	h.Add("Set-Cookie", "own=1; Path=/; HttpOnly; SameSite=Lax")
	if d := r.URL.Query().Get("domain"); d != "" {
		h.Add("Set-Cookie", "wide=1; Path=/; Domain="+d)
	}
	for _, name := range r.URL.Query()["name"] {
		h.Add("Set-Cookie", name+"=forged; Path=/")
	}
	reply(w, h["Set-Cookie"])
}

// redirect sends visitors to ?to=, whatever that is.
func redirect(w http.ResponseWriter, r *http.Request) {
	w.Header()["Location"] = []string{r.URL.Query().Get("to")}
	w.WriteHeader(int(min(max(number(r, "code", 302), 300), 399)))
}

func trailers(w http.ResponseWriter, r *http.Request) {
	w.Header().Add("Trailer", "X-Sum")
	w.Header().Add("Trailer", "X-Twice")
	sum := sha256.Sum256(pattern)
	_, _ = w.Write(pattern)
	w.Header().Set("X-Sum", hex.EncodeToString(sum[:]))
	w.Header()["X-Twice"] = []string{"one", "two"}
}

// hop answers with headers that belong to one hop.
func hop(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Connection", "X-Private-Hop")
	h.Set("X-Private-Hop", "must not arrive")
	h.Set("Keep-Alive", "timeout=5")
	h.Set("Proxy-Authenticate", "Basic")
	h.Set("X-Arrives", "yes")
	_, _ = io.WriteString(w, "hop\n")
}

// raw answers with bytes that are no proper reply; ?kind= chooses which.
func raw(w http.ResponseWriter, r *http.Request) {
	texts := map[string]string{
		"two-lengths":      "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
		"length-and-chunk": "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"two-replies": "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\nContent-Length: 9\r\n" +
			"Set-Cookie: smuggled=1\r\n\r\npoisoned!",
		"no-http":     "220 mail.example.org ESMTP\r\n",
		"bad-header":  "HTTP/1.1 200 OK\r\nBad Header: 1\r\nContent-Length: 2\r\n\r\nok",
		"switch":      "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: nobody-asked\r\n\r\n",
		"early-hints": "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"to-the-end":  "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the connection ends",
	}
	kind := r.URL.Query().Get("kind")
	text, known := texts[kind]
	if kind == "big-head" {
		text, known = "HTTP/1.1 200 OK\r\nX-Big: "+string(bytes.Repeat([]byte("a"), int(min(number(r, "n", 1<<20), 64<<20))))+"\r\n\r\n", true
	}
	if !known {
		http.Error(w, "no such kind", http.StatusNotFound)
		return
	}
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(c, text)
	_ = c.Close()
}

// cut promises ?n= bytes, sends half of them and breaks the connection.
func cut(w http.ResponseWriter, r *http.Request) {
	n := min(number(r, "n", 1<<20), maxBytes)
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	for left := n / 2; left > 0; left -= min(left, int64(len(pattern))) {
		if _, err := w.Write(pattern[:min(left, int64(len(pattern)))]); err != nil {
			break
		}
	}
	panic(http.ErrAbortHandler)
}
