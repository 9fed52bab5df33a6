package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"github.com/moby/moby/client"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
)

// The labels of a container; together they are its runtime.Identity. All are always set, so
// that labels an image brings can never stand in for ours.
const (
	labelCluster    = "berth.cluster"
	labelAgent      = "berth.agent"
	labelKernel     = "berth.kernel"
	labelSession    = "berth.session"
	labelGeneration = "berth.generation"
	labelAlloc      = "berth.alloc"
	labelSchema     = "berth.schema"
	labelAddress    = "berth.address"
	labelNetwork    = "berth.network"
)

// The labels of the never-started containers of ReadImageFile: whose they are, and which Runtime
// value made them, so that a later one recognises leftovers of a killed agent.
const (
	labelProbe      = "berth.probe"
	labelProbeAgent = "berth.probe.agent"
	labelProbeBy    = "berth.probe.by"
)

var identityLabels = []string{
	labelCluster, labelAgent, labelKernel, labelSession, labelGeneration, labelAlloc, labelSchema, labelAddress, labelNetwork,
	labelProbe, labelProbeAgent, labelProbeBy,
}

func labelsOf(id runtime.Identity) map[string]string {
	return map[string]string{
		labelCluster:    id.Cluster,
		labelAgent:      string(id.Agent),
		labelKernel:     string(id.Kernel),
		labelSession:    string(id.Session),
		labelGeneration: strconv.FormatInt(id.Generation, 10),
		labelAlloc:      id.Allocation,
		labelSchema:     strconv.Itoa(id.Schema),
		labelAddress:    id.Address,
		labelNetwork:    networkLabel(id.HostNetwork),
	}
}

// identityOf reads labels back. Unreadable numbers become zero: such a container is still
// listed, accounted for and removable.
func identityOf(labels map[string]string) runtime.Identity {
	id := runtime.Identity{
		Cluster:    labels[labelCluster],
		Agent:      cluster.AgentID(labels[labelAgent]),
		Kernel:     cluster.KernelID(labels[labelKernel]),
		Session:    cluster.SessionID(labels[labelSession]),
		Allocation: labels[labelAlloc],
		Address:    labels[labelAddress],
	}
	id.HostNetwork = labels[labelNetwork] == runtime.NetworkHost
	id.Generation, _ = strconv.ParseInt(labels[labelGeneration], 10, 64)
	id.Schema, _ = strconv.Atoi(labels[labelSchema])
	return id
}

// mine selects the containers of this cluster and agent.
func (r *Runtime) mine() client.Filters {
	return client.Filters{}.Add("label",
		labelCluster+"="+r.cfg.Cluster, labelAgent+"="+string(r.cfg.Agent))
}

// owns reports whether labels are those of a kernel of this cluster and agent.
func (r *Runtime) owns(labels map[string]string) bool {
	return labels[labelKernel] != "" && labels[labelCluster] == r.cfg.Cluster && labels[labelAgent] == string(r.cfg.Agent)
}

// name derives the container's name. It holds a digest of cluster and agent, so equal kernel
// ids of two clusters on one engine are two containers, and a kernel is found without a search.
func (r *Runtime) name(kernel cluster.KernelID) (string, error) {
	if err := runtime.CheckKernel(kernel); err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(r.cfg.Cluster + "\x00" + string(r.cfg.Agent)))
	return "berth-" + hex.EncodeToString(sum[:4]) + "-" + string(kernel), nil
}

func networkLabel(host bool) string {
	if host {
		return runtime.NetworkHost
	}
	return ""
}
