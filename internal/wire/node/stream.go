package node

import "path/filepath"

// The routes that an agent serves on its stream connection (ALPN ALPNStream), where the
// manager is the HTTP/2 client. {id} is the kernel. A failure is a JSON body in the shape of
// wire/run.Failure with the status of its kind; so a wire/run.Client with the base URL
// http://agent/kernels/ID/runner works unchanged, full-duplex streams included.
const (
	// StreamRunner is followed by any route of wire/run; the agent adds the runner's token.
	StreamRunner = "/kernels/{id}/runner/"
	// StreamLogs (GET ?follow=true&tail=LINES) is the container's output as plain bytes.
	StreamLogs = "/kernels/{id}/logs"
	// StreamCommit (POST CommitRequest) answers with lines of CommitProgress, the last with Image or Error.
	StreamCommit = "/kernels/{id}/commit"
	// StreamImages (GET ?reference=REFERENCE) answers with ImageDetails of an image on the host.
	StreamImages = "/images"
	// StreamRemoveImage (POST ImageRemoval) deletes an image that was made of a session: 204, also when it is not there; 409 while it
	// is in use.
	StreamRemoveImage = "/images/remove"
	// StreamStats (GET) answers with KernelStats.
	StreamStats = "/kernels/{id}/stats"
	// StreamPort connects to a port inside the kernel, full-duplex: the request's body is what the app reads, the reply's
	// what it writes. The end of the request's body is the app's end of input; the app's end ends the whole stream. Over the
	// agent's data port the same path takes the upgrade of package wire/tunnel. There is no query and no host.
	StreamPort = "/kernels/{id}/ports/{port}"
	// StreamHealth (GET) answers 200 and the text "ok".
	StreamHealth = "/healthz"
)

// CommitRequest asks for an image of a kernel's file system.
type CommitRequest struct {
	Reference string            `json:"reference"`
	Labels    map[string]string `json:"labels,omitempty"`
	// MaxBytes is how large the image may be; 0 is no limit. Agents of before 2026-11-23 ignore it: the manager looks again.
	MaxBytes int64 `json:"max_bytes,omitempty"`
}

// ImageDetails describe one image of a host, for an administrator who takes it into the catalogue.
type ImageDetails struct {
	Reference    string            `json:"reference"`
	ID           string            `json:"id"`
	Architecture string            `json:"architecture"`
	SizeBytes    int64             `json:"size_bytes"`
	Labels       map[string]string `json:"labels"`
}

// ImageRemoval names an image by its reference and its content.
type ImageRemoval struct {
	Reference string `json:"reference"`
	ID        string `json:"id"`
}

// CommitProgress is one line of the answer to CommitRequest.
type CommitProgress struct {
	Message string `json:"message,omitempty"`
	// Image is set in the last line after success, Error and Kind (a fault.Kind text) after failure.
	Image *CommittedImage `json:"image,omitempty"`
	Error string          `json:"error,omitempty"`
	Kind  string          `json:"kind,omitempty"`
}

// CommittedImage is what a commit made.
type CommittedImage struct {
	Reference    string `json:"reference"`
	ID           string `json:"id"`
	SizeBytes    int64  `json:"size_bytes"`
	Architecture string `json:"architecture"`
}

// KernelStats are the present counters of a kernel under the names of KernelMetrics.values;
// an absent name is unknown, never zero.
type KernelStats struct {
	AtUnixMS int64              `json:"at_unix_ms"`
	Values   map[string]float64 `json:"values"`
}

// The names in Metrics.node and KernelMetrics.values. Bytes and milliseconds are totals since
// the start of the kernel or host, percent is over the last interval (100 is one core).
const (
	MetricCPUUsed = "cpu_used"  // ms
	MetricCPUUtil = "cpu_util"  // percent
	MetricCPUWant = "cpu_want"  // percent: cpu_util and the part of the time in which something waited for a core
	MetricMem     = "mem"       // bytes
	MetricMemPeak = "mem_peak"  // bytes
	MetricMemCap  = "mem_total" // bytes
	MetricIORead  = "io_read"   // bytes
	MetricIOWrite = "io_write"  // bytes
	MetricNetRx   = "net_rx"    // bytes
	MetricNetTx   = "net_tx"    // bytes
	MetricPids    = "pids"
	MetricOOM     = "oom_kills"
	MetricCores   = "cores"
)

// DataSocketName is the base name of every agent's data socket. Whoever connects to a path that an agent reported holds to
// it, so that no agent can name the socket of another program.
const DataSocketName = "data.sock"

// DataSocket reports whether path can be an agent's data socket: absolute, clean and of the right name.
func DataSocket(path string) bool {
	return len(path) <= 4096 && filepath.IsAbs(path) && filepath.Clean(path) == path && filepath.Base(path) == DataSocketName
}
