// Package nvmlwire is what the agent and its helper process berth-nvml say to each other about the NVIDIA GPUs of a host. The
// helper loads NVIDIA's management library, which needs cgo and can hang in the driver; the agent is a static program and
// must do neither. Each message is one line of JSON: requests on the helper's standard input, answers on its standard output
// in any order, and events there that nobody asked for.
package nvmlwire

// Version is the version of these messages; a helper of another one is not used.
const Version = 1

// Program is the file name of the helper.
const Program = "berth-nvml"

// MaxLine bounds one message in bytes, MaxGPUs what one host may have.
const (
	MaxLine = 4 << 20
	MaxGPUs = 64
)

// The methods of a request.
const (
	// MethodLook asks for Facts.
	MethodLook = "look"
	// MethodSample asks for a Sample.
	MethodSample = "sample"
)

// Request asks for something. IDs grow and are not used twice.
type Request struct {
	ID     int64  `json:"id"`
	Method string `json:"method"`
}

// Message is a line of the helper: first a hello (Version above zero), then answers (ID above zero) and events.
type Message struct {
	Version int     `json:"version,omitempty"`
	ID      int64   `json:"id,omitempty"`
	Error   string  `json:"error,omitempty"` // in words; a request that failed has no other result
	Facts   *Facts  `json:"facts,omitempty"`
	Sample  *Sample `json:"sample,omitempty"`
	Event   *Event  `json:"event,omitempty"`
}

// Facts are the GPUs of a host.
type Facts struct {
	// Driver is the version of the NVIDIA driver, such as "580.65.06"; CUDA the newest version of CUDA that it runs: "13.0".
	Driver string `json:"driver"`
	CUDA   string `json:"cuda"`
	GPUs   []GPU  `json:"gpus"`
	// Problems say in words what is wrong with cards and MIG instances that cannot be named, so that they are not among GPUs.
	Problems []string `json:"problems,omitempty"`
}

// GPU is one card.
type GPU struct {
	UUID  string `json:"uuid"`
	Model string `json:"model"`
	// PCI is the address as Linux writes it: "0000:07:00.0".
	PCI string `json:"pci"`
	// NUMA is the node that the card is attached to, -1 when unknown.
	NUMA int `json:"numa"`
	// Minor is the N of /dev/nvidiaN.
	Minor int `json:"minor"`
	// Memory is in bytes, Capability the compute capability such as "8.0". They are 0 and "" when the driver does not tell them.
	Memory     int64  `json:"memory"`
	Capability string `json:"capability"`
	// Links are the distance classes of package alloc to other cards by UUID.
	Links map[string]int `json:"links,omitempty"`
	// MIG says that the card is cut into instances; then they are given out and the card itself is not.
	MIG       bool       `json:"mig,omitempty"`
	Instances []Instance `json:"instances,omitempty"`
	// Problem says in words why the card cannot be used; "" when it can. With one, the rest may be what was known earlier.
	Problem string `json:"problem,omitempty"`
}

// Instance is a MIG instance of a card.
type Instance struct {
	UUID string `json:"uuid"`
	// Profile is "1g.10gb", as nvidia-smi names it without "MIG".
	Profile string `json:"profile"`
	Memory  int64  `json:"memory"`
	// GPUInstance and ComputeInstance are its numbers on the card.
	GPUInstance     int `json:"gpu_instance"`
	ComputeInstance int `json:"compute_instance"`
}

// Sample is one measurement of all cards.
type Sample struct {
	Uses []Use `json:"uses"`
}

// Use is how busy one card or MIG instance is. What could not be measured is nil.
type Use struct {
	UUID string `json:"uuid"`
	// Utilisation is in percent of the time in which something ran, MemoryUsed in bytes, Power in watts, Temperature in °C.
	Utilisation *float64 `json:"utilisation,omitempty"`
	MemoryUsed  *int64   `json:"memory_used,omitempty"`
	Power       *float64 `json:"power,omitempty"`
	Temperature *float64 `json:"temperature,omitempty"`
	// Processes are the programs that use it, by their process ids on the host. Those of a card that is cut into MIG instances
	// are with its instances alone.
	Processes []Process `json:"processes,omitempty"`
}

// Process is one program on a card.
type Process struct {
	PID    int   `json:"pid"`
	Memory int64 `json:"memory"` // bytes
	// MemoryUnknown says that the driver does not tell its memory, which then is 0.
	MemoryUnknown bool `json:"memory_unknown,omitempty"`
	// Utilisation is in percent of the card; nil when the driver does not tell it.
	Utilisation *float64 `json:"utilisation,omitempty"`
}

// Event is something that the driver reported about a card, such as an XID error.
type Event struct {
	UUID string `json:"uuid"`
	XID  uint64 `json:"xid"`
}
