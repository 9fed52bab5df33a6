// Package jupyter drives a Jupyter kernel over unix sockets: executes cells, answers its
// questions, asks for completions. It implements the parts of messaging protocol 5.3 that a run needs.
//
// It neither starts nor stops the kernel's process; python does.
package jupyter

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"berth.dev/berth/internal/runner/cell"
	"berth.dev/berth/internal/runner/output"
	"berth.dev/berth/internal/runner/zmtp"
)

// askAgain is how long a kernel's answer may be late on the second socket before it is asked again.
const askAgain = 10 * time.Millisecond

// lastWords is how long the other sockets of a kernel are read when one of them has ended. A kernel that died closes all of them, but what
// it sent before may still lie in the others. Another process may hold them open, so the time is bounded.
const lastWords = 2 * time.Second

// Connection is what a kernel's connection file says, for transport ipc: socket number n is
// the file Base-n.
type Connection struct {
	Base string
	Key  string
}

// The socket numbers.
const (
	portShell = iota + 1
	portIOPub
	portStdin
	portControl
	portHeartbeat
)

// NewConnection invents a key for sockets under the given path prefix.
func NewConnection(base string) Connection { return Connection{Base: base, Key: randomHex(32)} }

// WriteFile writes the connection file.
func (c Connection) WriteFile(file string, mode os.FileMode) error {
	b, err := json.Marshal(map[string]any{
		"transport": "ipc", "ip": c.Base, "key": c.Key, "signature_scheme": "hmac-sha256", "kernel_name": "python3",
		"shell_port": portShell, "iopub_port": portIOPub, "stdin_port": portStdin, "control_port": portControl, "hb_port": portHeartbeat,
	})
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, mode)
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

type header struct {
	MsgID    string `json:"msg_id"`
	Session  string `json:"session"`
	Username string `json:"username"`
	Date     string `json:"date"`
	MsgType  string `json:"msg_type"`
	Version  string `json:"version"`
}

type message struct {
	header    header
	raw       []byte // the header as it came, to be the parent of replies
	parent    string // msg_id of the request this belongs to
	content   json.RawMessage
	truncated bool
}

// Kernel is a connected kernel. One cell runs at a time; Complete may be called between cells.
type Kernel struct {
	key                 []byte
	session             string
	shell, iopub, stdin *zmtp.Conn

	mu      sync.Mutex
	current *execution
	waiting map[string]chan message // shell replies by request id
	err     error                   // why the connection ended
	open    int                     // sockets that are read
	limit   *time.Timer             // of what is read after the first of them ended
	last    time.Duration           // how long that is: lastWords

	stray  func(stream, text string) // output that belongs to no cell
	ended  chan struct{}
	loops  sync.WaitGroup
	onceFn sync.Once
}

type execution struct {
	id   string
	sink cell.Sink
	idle chan struct{}
	once sync.Once
	// fences holds one token per Fence that no question has used yet.
	fences chan struct{}
}

// Connect connects to a kernel that is starting up, until it answers or ctx ends.
func Connect(ctx context.Context, c Connection, stray func(stream, text string)) (*Kernel, error) {
	k := &Kernel{key: []byte(c.Key), session: randomHex(16), waiting: map[string]chan message{}, stray: stray, ended: make(chan struct{}),
		last: lastWords}
	identity := k.session
	for _, s := range []struct {
		conn **zmtp.Conn
		port int
		typ  string
	}{{&k.shell, portShell, "DEALER"}, {&k.iopub, portIOPub, "SUB"}, {&k.stdin, portStdin, "DEALER"}} {
		// The kernel routes questions to the stdin socket that has the shell socket's identity.
		conn, err := dial(ctx, fmt.Sprintf("%s-%d", c.Base, s.port), s.typ, identity)
		if err != nil {
			k.Close()
			return nil, err
		}
		*s.conn = conn
	}
	k.open = 3
	k.loops.Add(3)
	go k.receive(k.shell, k.onShell)
	go k.receive(k.iopub, k.onIOPub)
	go k.receive(k.stdin, k.onStdin)
	// A subscription takes effect some time after it was sent: ask until an answer is heard on both sockets.
	for {
		heard := k.expectIO()
		if _, err := k.ask(ctx, "kernel_info_request", map[string]any{}); err != nil {
			k.Close()
			return nil, fmt.Errorf("greet the kernel: %w", err)
		}
		timer := time.NewTimer(askAgain)
		select {
		case <-heard:
			timer.Stop()
			return k, nil
		case <-timer.C:
		case <-ctx.Done():
			k.Close()
			return nil, ctx.Err()
		}
	}
}

// dial waits for the kernel to bind; a socket file that appears is tried at once.
func dial(ctx context.Context, path, typ, identity string) (*zmtp.Conn, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err == nil {
			return zmtp.Handshake(conn, typ, identity, 10*time.Second)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to the kernel: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// expectIO makes an execution without output whose idle channel closes with any idle status.
func (k *Kernel) expectIO() <-chan struct{} {
	e := &execution{idle: make(chan struct{})}
	k.mu.Lock()
	k.current = e
	k.mu.Unlock()
	return e.idle
}

func (k *Kernel) receive(c *zmtp.Conn, handle func(message)) {
	defer k.loops.Done()
	for {
		m, err := c.Recv()
		if err != nil {
			k.lost(err)
			return
		}
		msg, err := k.parse(m)
		if err != nil {
			continue // not signed with our key, or not a message: it is not for us
		}
		handle(msg)
	}
}

// lost says that one socket has ended. The connection ends with the last of them, or when lastWords have passed.
func (k *Kernel) lost(err error) {
	k.mu.Lock()
	k.open--
	last := k.open == 0
	if k.limit == nil && k.err == nil && !last {
		k.limit = time.AfterFunc(k.last, func() { k.fail(err) })
	}
	k.mu.Unlock()
	if last {
		k.fail(err)
	}
}

func (k *Kernel) fail(err error) {
	k.onceFn.Do(func() {
		k.mu.Lock()
		k.err = err
		if k.limit != nil {
			k.limit.Stop()
		}
		k.mu.Unlock()
		close(k.ended)
		for _, c := range []*zmtp.Conn{k.shell, k.iopub, k.stdin} {
			if c != nil {
				_ = c.Close()
			}
		}
	})
}

// Close drops the connection.
func (k *Kernel) Close() {
	k.fail(errors.New("the connection was closed"))
	k.loops.Wait()
}

func (k *Kernel) sign(parts ...[]byte) []byte {
	h := hmac.New(sha256.New, k.key)
	for _, p := range parts {
		h.Write(p)
	}
	return []byte(hex.EncodeToString(h.Sum(nil)))
}

var delimiter = []byte("<IDS|MSG>")

func (k *Kernel) parse(m zmtp.Message) (message, error) {
	i := 0
	for i < len(m.Frames) && !bytes.Equal(m.Frames[i], delimiter) {
		i++
	}
	f := m.Frames[min(i+1, len(m.Frames)):]
	if len(f) < 5 {
		return message{}, errors.New("not a Jupyter message")
	}
	if !m.Truncated && !hmac.Equal(k.sign(f[1:5]...), f[0]) {
		return message{}, errors.New("wrong signature")
	}
	out := message{raw: f[1], content: f[4], truncated: m.Truncated}
	if err := json.Unmarshal(f[1], &out.header); err != nil {
		return message{}, err
	}
	var parent struct {
		MsgID string `json:"msg_id"`
	}
	if err := json.Unmarshal(f[2], &parent); err != nil {
		return message{}, err
	}
	out.parent = parent.MsgID
	return out, nil
}

func (k *Kernel) send(c *zmtp.Conn, id, typ string, parent []byte, content any) error {
	h, err := json.Marshal(header{MsgID: id, Session: k.session, Username: "berth", Date: time.Now().UTC().Format(time.RFC3339Nano),
		MsgType: typ, Version: "5.3"})
	if err != nil {
		return err
	}
	body, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if parent == nil {
		parent = []byte("{}")
	}
	meta := []byte("{}")
	return c.Send(delimiter, k.sign(h, parent, meta, body), h, parent, meta, body)
}

// ask sends a request on the shell socket and waits for its reply.
func (k *Kernel) ask(ctx context.Context, typ string, content any) (message, error) {
	id, ch := k.register()
	defer k.unregister(id)
	if err := k.send(k.shell, id, typ, nil, content); err != nil {
		return message{}, err
	}
	return k.reply(ctx, ch)
}

// reply waits for the reply to a request. One that came before the connection ended counts.
func (k *Kernel) reply(ctx context.Context, ch <-chan message) (message, error) {
	select {
	case m := <-ch:
		return m, nil
	case <-k.ended:
		select {
		case m := <-ch:
			return m, nil
		default:
			return message{}, k.reason()
		}
	case <-ctx.Done():
		return message{}, ctx.Err()
	}
}

func (k *Kernel) register() (string, chan message) {
	id, ch := randomHex(12), make(chan message, 1)
	k.mu.Lock()
	k.waiting[id] = ch
	k.mu.Unlock()
	return id, ch
}

func (k *Kernel) unregister(id string) {
	k.mu.Lock()
	delete(k.waiting, id)
	k.mu.Unlock()
}

func (k *Kernel) reason() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

func (k *Kernel) onShell(m message) {
	k.mu.Lock()
	ch := k.waiting[m.parent]
	k.mu.Unlock()
	if ch != nil {
		select {
		case ch <- m:
		default: // a second reply to one request: the first counts
		}
	}
}

// ErrLost means that the kernel ended or became unreachable while a cell ran.
var ErrLost = errors.New("the interpreter is gone")

// Execute runs a cell and returns its exit code: 0, 1 after an exception, or what SystemExit says.
// A silent cell leaves no trace in the history.
func (k *Kernel) Execute(code string, silent bool, sink cell.Sink) (int, error) {
	id, ch := k.register()
	defer k.unregister(id)
	e := &execution{id: id, sink: sink, idle: make(chan struct{}), fences: make(chan struct{}, 16)}
	k.mu.Lock()
	k.current = e
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		k.current = nil
		k.mu.Unlock()
	}()
	if err := k.send(k.shell, id, "execute_request", nil, map[string]any{
		"code": code, "silent": silent, "store_history": !silent, "user_expressions": map[string]any{}, "allow_stdin": !silent,
		// With stop_on_error a kernel would also drop the next cell when it comes at once.
		"stop_on_error": false,
	}); err != nil {
		return 0, ErrLost
	}
	// The cell is over when the reply and the idle status are both here: they come over different sockets.
	m, err := k.reply(context.Background(), ch)
	if err != nil {
		return 0, ErrLost
	}
	select {
	case <-e.idle:
	case <-k.ended:
		select {
		case <-e.idle:
		default:
			return 0, ErrLost
		}
	}
	var r struct {
		Status string `json:"status"`
		Ename  string `json:"ename"`
		Evalue string `json:"evalue"`
	}
	if err := json.Unmarshal(m.content, &r); err != nil {
		return 1, nil
	}
	switch {
	case r.Status == "ok":
		return 0, nil
	case r.Ename == "SystemExit":
		code, text := ExitCode(r.Evalue)
		if text == "" && code != 0 {
			text = "SystemExit: " + r.Evalue
		}
		if text != "" {
			sink.TextNow(cell.Stderr, text+"\n")
		}
		return code, nil
	case r.Ename == "KeyboardInterrupt":
		return 130, nil
	}
	return 1, nil
}

func (k *Kernel) onStdin(m message) {
	if m.header.MsgType != "input_request" {
		return
	}
	k.mu.Lock()
	e := k.current
	k.mu.Unlock()
	if e == nil || e.sink == nil || m.parent != e.id {
		return
	}
	var q struct {
		Prompt   string `json:"prompt"`
		Password bool   `json:"password"`
	}
	if err := json.Unmarshal(m.content, &q); err != nil {
		return
	}
	// The question takes another socket than what was printed before it, and overtakes that.
	timer := time.NewTimer(time.Second)
	select {
	case <-e.fences:
	case <-timer.C: // the kernel was not set up to send fences
	case <-k.ended:
	}
	timer.Stop()
	if q.Prompt != "" {
		e.sink.TextNow(cell.Stdout, output.StripANSI(q.Prompt))
	}
	k.loops.Add(1)
	go func() { // Ask returns with the run's end at the latest
		defer k.loops.Done()
		a := e.sink.Ask(q.Password)
		if a.None {
			return
		}
		value := a.Text
		if a.EOF {
			value = "\x04" // how the protocol spells the end of input
		}
		// a lost kernel is seen by Execute
		_ = k.send(k.stdin, randomHex(12), "input_reply", m.raw, map[string]any{"value": value, "status": "ok"})
	}()
}

// Fence is the MIME type of the empty output by which a kernel, as set up by its caller, says before
// each question that everything printed so far was sent.
const Fence = "application/x-berth-fence"

// Complete returns the words that fit at a cursor, counted in characters.
func (k *Kernel) Complete(ctx context.Context, code string, cursor int) ([]string, error) {
	m, err := k.ask(ctx, "complete_request", map[string]any{"code": code, "cursor_pos": cursor})
	if err != nil {
		return nil, err
	}
	var r struct {
		Matches []string `json:"matches"`
	}
	if err := json.Unmarshal(m.content, &r); err != nil {
		return nil, fmt.Errorf("read completions: %w", err)
	}
	return r.Matches, nil
}
