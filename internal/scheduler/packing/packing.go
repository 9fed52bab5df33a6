// Package packing decides which node a request should go to, so that the requests that typically
// follow can still be placed: the less a placement takes from what a node could serve, the better.
//
// It knows nothing of sessions or agents: a Node is what one machine has free, a Request what one
// container asks, a Workload how often each kind of request arrives. A Policy scores one node for
// one request; the caller compares nodes and places. Everything is a function of the calls made:
// the same calls in the same order give the same scores.
//
// The value of a node is what random series of typical requests would still fill of its GPUs (series.go), plus the prices of what it
// has that is scarce in the cluster (prices.go). The loss of a placement is the value that the node has before it, less the value after
// it. docs/decisions/0008-packing.md has the reasons.
package packing

// Whole is a wholly free GPU, in thousandths.
const Whole = 1000

// Bounds of what a policy understands: GPUs of one node, and numbers of GPU models.
const (
	MaxGPUs   = 32
	MaxModels = 64
)

// Models is a set of GPU models: bit i stands for the model that the caller numbered i.
type Models uint64

func (m Models) has(model uint8) bool { return m>>model&1 == 1 }

// Node is what one machine has free.
type Node struct {
	// CPU in thousandths of a core, Mem in MiB.
	CPU, Mem int64
	// GPUs holds the free thousandths of each GPU, in the caller's order; at most MaxGPUs.
	GPUs []int32
	// Model is the caller's number of the GPUs' model, below MaxModels.
	Model uint8
}

// Request is what one container asks of one node.
type Request struct {
	CPU, Mem int64
	// GPUs is the number of distinct GPUs; 0 for none.
	GPUs int
	// Milli is what it takes of each GPU, 1 to Whole; less than Whole only when GPUs is 1.
	Milli int32
	// Models that may serve it; 0 means any.
	Models Models
}

// Choice is the best way to place a request on a node.
type Choice struct {
	// Loss is what the placement takes of the node's value; smaller is better. Losses of one
	// request compare between nodes while Policy.Epoch stays the same.
	Loss int64
	// GPU is the index of the GPU that a share goes to; -1 where whole GPUs are taken (any wholly
	// free ones will do) or none.
	GPU int
}

// valid says whether the request can be placed on any node that a policy understands.
func (r *Request) valid() bool {
	switch {
	case r.CPU < 0 || r.Mem < 0 || r.GPUs < 0 || r.GPUs > MaxGPUs:
		return false
	case r.GPUs == 0:
		return true
	case r.GPUs == 1:
		return r.Milli >= 1 && r.Milli <= Whole
	}
	return r.Milli == Whole
}

// Fits says whether the node has room for the request.
func (n *Node) Fits(r *Request) bool {
	if n.CPU < r.CPU || n.Mem < r.Mem {
		return false
	}
	if r.GPUs == 0 {
		return true
	}
	if r.Models != 0 && !r.Models.has(n.Model) {
		return false
	}
	have := 0
	for _, g := range n.GPUs {
		if g >= r.Milli {
			have++
		}
	}
	return have >= r.GPUs
}

// wholes counts the wholly free GPUs.
func wholes(gpus []int32) (n int) {
	for _, g := range gpus {
		if g == Whole {
			n++
		}
	}
	return n
}
