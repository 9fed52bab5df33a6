package run

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Version is the protocol spoken by this build; MinVersion the oldest one it still serves.
const (
	Version    = 1
	MinVersion = 1
)

// The headers and the upgrade token of the protocol.
const (
	HeaderVersion   = "Berth-Run-Version"
	UpgradeProtocol = "berth-frames/1"
)

// The routes. Step's path holds the run id.
const (
	PathHello     = "/v1/hello"
	PathStep      = "/v1/runs/{id}/step"
	PathInterrupt = "/v1/interrupt"
	PathComplete  = "/v1/complete"
	PathFiles     = "/v1/files"
	PathUpload    = "/v1/upload"
	PathDownload  = "/v1/download"
	PathPTY       = "/v1/pty"
	PathExec      = "/v1/exec"
	PathShutdown  = "/v1/shutdown"
	PathBatch     = "/v1/batch"
	PathConfine   = "/v1/confine"
	PathNotice    = "/v1/notice"
	PathKeys      = "/v1/keys"
	PathPeers     = "/v1/peers"
)

// Hard bounds that both sides rely on.
const (
	// MaxReply bounds every JSON reply that a client reads.
	MaxReply = 64 << 20
	// MaxRequest bounds every JSON request body.
	MaxRequest = 16 << 20
	// MaxWait is the longest that one Step may wait.
	MaxWait = 30 * time.Second
	// MaxListing bounds the entries of one directory listing.
	MaxListing = 10_000
	// MaxRunID bounds the length of a run id.
	MaxRunID = 128
)

// BatchRunID is the reserved run id under which a batch session's command runs.
const BatchRunID = "batch-job"

// KernelState is how the interpreter of query mode is doing.
type KernelState string

// The kernel states. KernelNone: not started yet (it starts with the first cell).
const (
	KernelNone     KernelState = "none"
	KernelStarting KernelState = "starting"
	KernelIdle     KernelState = "idle"
	KernelBusy     KernelState = "busy"
	KernelDead     KernelState = "dead"
)

// Capabilities that Hello may name.
const (
	CanQuery    = "query"
	CanBatch    = "batch"
	CanInput    = "input"
	CanComplete = "complete"
	CanPTY      = "pty"
	CanExec     = "exec"
	CanFiles    = "files"
	CanConfine  = "confine"
	CanPeers    = "peers"
)

// Hello is the reply of GET /v1/hello: the runner is up and serves.
type Hello struct {
	Version      int         `json:"version"`
	MinVersion   int         `json:"min_version"`
	Build        string      `json:"build,omitempty"`
	KernelID     string      `json:"kernel_id"`
	PID          int         `json:"pid"`
	StartedAt    time.Time   `json:"started_at"`
	Runtime      RuntimeInfo `json:"runtime"`
	Capabilities []string    `json:"capabilities"`
	Kernel       KernelInfo  `json:"kernel"`
	Batch        BatchState  `json:"batch"`
}

// RuntimeInfo says how query mode works in this image.
type RuntimeInfo struct {
	Type string `json:"type"`           // python, c, cpp, go, nodejs, r, shell, app
	Path string `json:"path,omitempty"` // interpreter or compiler found; empty when there is none
	// How is "ipykernel", "shim", "recipe" or "none"; "unknown" until the first cell for python.
	How string `json:"how"`
}

// KernelInfo is the state of the interpreter.
type KernelInfo struct {
	State KernelState `json:"state"`
	PID   int         `json:"pid,omitempty"`
	Runs  int64       `json:"runs"` // cells and batches finished so far
}

// Mode says what a Step does; the names are the wire's.
type Mode string

// The modes. Continue only waits for more; Input answers a waiting-input.
const (
	ModeQuery    Mode = "query"
	ModeBatch    Mode = "batch"
	ModeInput    Mode = "input"
	ModeContinue Mode = "continue"
)

// Status is what a Step found; the names are the wire's.
type Status string

// The statuses. Only Finished and ExecTimeout end a run.
const (
	StatusContinued     Status = "continued"
	StatusWaitingInput  Status = "waiting-input"
	StatusCleanFinished Status = "clean-finished"
	StatusBuildFinished Status = "build-finished"
	StatusFinished      Status = "finished"
	StatusExecTimeout   Status = "exec-timeout"
)

// Final reports whether the run is over.
func (s Status) Final() bool { return s == StatusFinished || s == StatusExecTimeout }

// StepRequest is the body of POST /v1/runs/{id}/step: starts a run, answers its
// question or only waits; in every case it then waits for output and returns it.
//
// Two kinds of caller exist. One that counts sends From: the first sequence number it
// has not seen. Records below From are thereby acknowledged and forgotten, records from From
// on are sent again, so a repeated request (also a repeated start) loses and doubles nothing.
// One that does not count leaves From nil: it gets what follows the last reply; starting a run
// under the id of a run that ended and was delivered then begins a new run.
type StepRequest struct {
	Mode Mode `json:"mode"`
	// Code is the source text of query mode, the answer of input mode.
	Code string `json:"code,omitempty"`
	// EOF, in input mode, answers that there is no more input: input() raises EOFError.
	EOF bool `json:"eof,omitempty"`
	// InputSeq, in input mode with From, names the waiting-input record that is answered (its
	// sequence number is StepResult.Seq-1), so that a repeated answer is not taken for the
	// answer to the next question. 0 answers whatever question is open.
	InputSeq int64 `json:"input_seq,omitempty"`
	// Options are the commands of batch mode.
	Options *BatchOptions `json:"options,omitempty"`
	From    *int64        `json:"from,omitempty"`
	// WaitMS is how long to wait for the next event, at most MaxWait; 0 does not wait. A Step
	// returns before that as soon as there is a status to report; output alone is
	// returned after FlushMS from its first byte.
	WaitMS int `json:"wait_ms"`
	// FlushMS is how long output may be gathered before it is returned as continued;
	// 0 or more than WaitMS means WaitMS (the polling interface: 2 s); the stream interface uses 200.
	FlushMS int `json:"flush_ms,omitempty"`
	// LeaseMS, with From, lets the run go on without a reader for so long; then it is interrupted. 0: it goes on. A reader that lost
	// its connection comes back within that time. Runners that do not know it never interrupt for that reason.
	LeaseMS int `json:"lease_ms,omitempty"`
	// MaxBytes bounds the console of the reply; 0 means 1 MiB. One record is always returned.
	MaxBytes int `json:"max_bytes,omitempty"`
}

// BatchOptions are the commands of batch mode. Nil or empty skips a step, "*" means
// what the runtime's recipe finds fitting, anything else is a shell command.
type BatchOptions struct {
	Clean    *string `json:"clean,omitempty"`
	Build    *string `json:"build,omitempty"`
	BuildLog bool    `json:"buildLog,omitempty"`
	Exec     *string `json:"exec,omitempty"`
}

// StepResult is the reply of a step, in the shape of the execute protocol.
type StepResult struct {
	RunID  string `json:"runId"`
	Status Status `json:"status"`
	// ExitCode is set with clean-finished, build-finished, finished and exec-timeout.
	ExitCode *int         `json:"exitCode"`
	Options  *StepOptions `json:"options"`
	Console  []Console    `json:"console"` // never nil
	// Seq is the From of the next request: one more than the last record returned.
	Seq int64 `json:"seq"`
	// Lost counts bytes of output that had to be left out before this reply; a note in the
	// console says so too.
	Lost int64 `json:"lost,omitempty"`
}

// StepOptions come with waiting-input.
type StepOptions struct {
	IsPassword bool `json:"is_password"`
}

// ConsoleType is the kind of one console item; the names are the wire's.
type ConsoleType string

// The console types. Media carries a MIME type.
const (
	Stdout ConsoleType = "stdout"
	Stderr ConsoleType = "stderr"
	HTML   ConsoleType = "html"
	Log    ConsoleType = "log"
	Media  ConsoleType = "media"
)

// Console is one item of output: [type, text] or ["media", [mime, data]] in JSON.
type Console struct {
	Type ConsoleType
	Mime string // media only
	Data string
}

// Wire returns a value that encodes as the item does, but faster: what a MarshalJSON returns is scanned and
// copied once more by encoding/json, and output comes by the megabyte.
func (c Console) Wire() any {
	if c.Type == Media {
		return [2]any{c.Type, [2]string{c.Mime, c.Data}}
	}
	return [2]string{string(c.Type), c.Data}
}

// WireConsole is Wire for a list; never nil.
func WireConsole(list []Console) []any {
	out := make([]any, len(list))
	for i, c := range list {
		out[i] = c.Wire()
	}
	return out
}

// Wire returns a value that encodes as r does, but faster.
func (r StepResult) Wire() any {
	return struct {
		*StepResult
		Console []any `json:"console"`
	}{&r, WireConsole(r.Console)}
}

// MarshalJSON writes the wire's array form.
func (c Console) MarshalJSON() ([]byte, error) { return json.Marshal(c.Wire()) }

// textPair takes ["type","text"] apart without another scan of the text for its structure; ok is false for every
// other form. b must be valid JSON. text is still quoted.
func textPair(b []byte) (typ, text []byte, ok bool) {
	if len(b) < len(`["",""]`) || b[0] != '[' || b[1] != '"' || b[len(b)-1] != ']' || b[len(b)-2] != '"' {
		return nil, nil, false
	}
	end := bytes.IndexByte(b[2:], '"')
	if end < 0 {
		return nil, nil, false
	}
	typ, text = b[2:2+end], b[2+end+1:len(b)-1]
	if bytes.IndexByte(typ, '\\') >= 0 || len(text) < len(`,""`) || text[0] != ',' || text[1] != '"' {
		return nil, nil, false
	}
	text = text[1:]
	inner := text[1 : len(text)-1]
	for at := 0; ; at++ { // a quote inside that is not escaped ends the text: there are more than two items
		next := bytes.IndexByte(inner[at:], '"')
		if next < 0 {
			return typ, text, true
		}
		at += next
		escapes := 0
		for escapes < at && inner[at-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return nil, nil, false
		}
	}
}

// UnmarshalJSON reads the wire's array form.
func (c *Console) UnmarshalJSON(b []byte) error {
	if typ, text, ok := textPair(b); ok && ConsoleType(typ) != Media {
		*c = Console{Type: ConsoleType(typ)}
		return json.Unmarshal(text, &c.Data)
	}
	var pair []json.RawMessage
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return fmt.Errorf("a console item has %d parts, not 2", len(pair))
	}
	*c = Console{}
	if err := json.Unmarshal(pair[0], &c.Type); err != nil {
		return err
	}
	if c.Type != Media {
		return json.Unmarshal(pair[1], &c.Data)
	}
	var media []string
	if err := json.Unmarshal(pair[1], &media); err != nil {
		return err
	}
	if len(media) != 2 {
		return fmt.Errorf("a media item has %d parts, not 2", len(media))
	}
	c.Mime, c.Data = media[0], media[1]
	return nil
}

// InterruptRequest is the body of POST /v1/interrupt. An empty RunID means what
// runs now; a run that still waits for its turn is cancelled.
type InterruptRequest struct {
	RunID string `json:"runId,omitempty"`
}

// InterruptResult says whether there was anything to interrupt.
type InterruptResult struct {
	Interrupted bool `json:"interrupted"`
}

// CompleteRequest is the body of POST /v1/complete.
type CompleteRequest struct {
	Code    string          `json:"code"`
	Options CompleteOptions `json:"options"`
}

// CompleteOptions place the cursor: zero-based row and column in Code, the text of the
// line before the cursor and the text after it. All may be missing: the cursor is at the end.
type CompleteOptions struct {
	Row  int    `json:"row,omitempty"`
	Col  int    `json:"col,omitempty"`
	Line string `json:"line,omitempty"`
	Post string `json:"post,omitempty"`
}

// CompleteResult holds the words that could stand at the cursor, at most 1,000; never nil.
type CompleteResult struct {
	Completions []string `json:"completions"`
}

// MaxNotice bounds the text of a notice in bytes.
const MaxNotice = 4096

// NoticeRequest is the body of POST /v1/notice: a text for everybody who looks at a terminal of the session. Runners that do not know
// it answer 404.
type NoticeRequest struct {
	Text string `json:"text"`
}

// NoticeResult says how many terminals took the text.
type NoticeResult struct {
	Terminals int `json:"terminals"`
}

// MaxKeys bounds the lines of a KeysRequest.
const MaxKeys = 64

// KeysRequest is the body of POST /v1/keys: all lines in OpenSSH's format whose owners may log in, besides the session's own key and what
// the user added to ~/.ssh/authorized_keys. A key that was told before and is not told now is refused from then on, wherever it stands,
// and what logged in with it ends. Runners that do not know it answer 404. Added 2026-11-23.
type KeysRequest struct {
	Keys []string `json:"keys"`
}

// KeysResult says how many connections ended.
type KeysResult struct {
	Ended int `json:"ended"`
}

// MaxPeers bounds the kernels of a PeersRequest.
const MaxPeers = 4096

// Peer is a kernel of the session.
type Peer struct {
	Name    string `json:"name"` // main1, sub1, ...
	Address string `json:"address"`
	// Port is that of its SSH server, 0 for the usual one. Kernels in the network of one host have an address in common. Added 2026-11-28.
	Port int `json:"port,omitempty"`
}

// PeersRequest is the body of POST /v1/peers: all kernels of the session that have an address, its own included. It replaces what was said
// before. Running says that all kernels of the session run, and holds from then on: what waits for that begins. Runners of a session with
// one kernel refuse it, and those that do not know it answer 404. Added 2026-11-27.
type PeersRequest struct {
	Peers   []Peer `json:"peers"`
	Running bool   `json:"running,omitempty"`
}

// PeersResult says whether the session's commands may run.
type PeersResult struct {
	Running bool `json:"running"`
}

// PeerName reports whether a kernel may be called that: a label of a host name in small letters. What is written to files of names
// consists of such labels alone.
func PeerName(name string) bool {
	return name != "" && len(name) <= 63 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" &&
		name[0] >= 'a' && name[0] <= 'z' && name != "localhost"
}

// Entry is one file of a listing; the names are the wire's. Times are seconds since 1970.
type Entry struct {
	Mode     string  `json:"mode"` // as ls shows it: -rw-r--r--
	Size     int64   `json:"size"`
	Ctime    float64 `json:"ctime"`
	Mtime    float64 `json:"mtime"`
	Atime    float64 `json:"atime"`
	Filename string  `json:"filename"`
}

// Listing is the reply of GET /v1/files?path=P, sorted by name.
type Listing struct {
	Abspath   string  `json:"abspath"`
	Entries   []Entry `json:"entries"` // never nil
	Truncated bool    `json:"truncated,omitempty"`
}

// UploadResult says what POST /v1/upload wrote.
type UploadResult struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

// BatchPhase is how far a batch session's command got.
type BatchPhase string

// The phases; BatchNone for sessions that are not batch.
const (
	BatchNone     BatchPhase = "none"
	BatchRunning  BatchPhase = "running"
	BatchFinished BatchPhase = "finished"
)

// BatchState is the reply of GET /v1/batch.
type BatchState struct {
	Phase  BatchPhase   `json:"phase"`
	Result *BatchResult `json:"result,omitempty"` // set when finished
}

// BatchResult is what became of the command of a batch session. The runner writes it
// as JSON to Config.ResultFile (synced and renamed into place) before anyone is told, and
// then exits with ExitCode.
type BatchResult struct {
	KernelID string `json:"kernel_id"`
	// ExitCode is the command's own, 128+Signal when a signal ended it, 124 after the
	// timeout, 127 when it could not be started.
	ExitCode  int       `json:"exit_code"`
	Signal    int       `json:"signal,omitempty"`
	TimedOut  bool      `json:"timed_out,omitempty"`
	Cancelled bool      `json:"cancelled,omitempty"` // ended because the session was told to stop
	Error     string    `json:"error,omitempty"`     // why it could not be started
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at"`
	Usage     Usage     `json:"usage"`
	// OOM says that processes of the session were killed for want of memory.
	OOM bool `json:"oom,omitempty"`
}

// Usage is what a finished command and its waited-for children used.
type Usage struct {
	UserSeconds   float64 `json:"user_seconds"`
	SystemSeconds float64 `json:"system_seconds"`
	MaxRSSBytes   int64   `json:"max_rss_bytes"`
}

// ShutdownRequest is the body of POST /v1/shutdown: SIGTERM to everything, SIGKILL
// after the grace, then the runner exits. The reply comes before that happens.
type ShutdownRequest struct {
	GraceMS int `json:"grace_ms"`
}

// PTYStart is the first frame (FrameStart) of a terminal stream.
type PTYStart struct {
	// Terminal names the shell to attach to; empty means "main". The shell outlives the
	// stream: attaching again shows its recent output and goes on.
	Terminal string `json:"terminal,omitempty"`
	Rows     uint16 `json:"rows,omitempty"`
	Cols     uint16 `json:"cols,omitempty"`
	// Restart ends the shell of that name first.
	Restart bool `json:"restart,omitempty"`
}

// ExecStart is the first frame (FrameStart) of an exec stream. The process ends with the stream.
type ExecStart struct {
	Argv []string          `json:"argv"`
	Env  map[string]string `json:"env,omitempty"` // on top of the session's environment
	Dir  string            `json:"dir,omitempty"`
	TTY  bool              `json:"tty,omitempty"`
	Rows uint16            `json:"rows,omitempty"`
	Cols uint16            `json:"cols,omitempty"`
}

// Exit is the payload of FrameExit, the last frame from the runner.
type Exit struct {
	Code   int    `json:"code"` // 128+Signal when a signal ended it, 126 or 127 when it could not be started
	Signal int    `json:"signal,omitempty"`
	Error  string `json:"error,omitempty"`
}

// Resize is the payload of FrameResize.
type Resize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}
