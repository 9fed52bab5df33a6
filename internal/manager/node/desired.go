package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
)

// want is one call of Desired.
type want struct {
	agent cluster.AgentID
	told  map[cluster.KernelID]int64

	list []cluster.DesiredKernel
	err  error
}

// maxWants is how many agents are answered by the same statements.
const maxWants = 256

// Desired returns everything that should be true of an agent's kernels, ended ones that it must still remove included. told names
// the generations of kernels whose specification the agent has: they come without one. It never changes within a
// generation, so it need not be read again. Agents that ask at the same time are answered together.
func (n *Reports) Desired(ctx context.Context, agent cluster.AgentID, told map[cluster.KernelID]int64) ([]cluster.DesiredKernel, error) {
	w := &want{agent: agent, told: told}
	if err := n.wanting().Do(ctx, w); err != nil {
		return nil, fmt.Errorf("ask what agent %s should do: %w", agent, err)
	}
	return w.list, w.err
}

func (n *Reports) answerWants(ctx context.Context, batch []*want) {
	if err := n.desired(ctx, batch); err != nil {
		for _, w := range batch {
			w.list, w.err = nil, err
		}
	}
}

func (n *Reports) desired(ctx context.Context, batch []*want) error {
	agents := make([]string, len(batch))
	of := make(map[string][]*want, len(batch))
	for i, w := range batch {
		agents[i] = string(w.agent)
		of[agents[i]] = append(of[agents[i]], w)
	}
	rows, err := n.Store.DesiredKernels(ctx, agents)
	if err != nil {
		return fmt.Errorf("read desired kernels: %w", err)
	}
	removals, err := n.Store.RemovalsOfAgents(ctx, agents)
	if err != nil {
		return fmt.Errorf("read removals: %w", err)
	}
	present := make(map[string]bool, len(rows))
	var untold []string
	for _, r := range rows {
		present[r.ID+r.AgentID] = true
		d := cluster.DesiredKernel{Kernel: cluster.KernelID(r.ID), Session: cluster.SessionID(r.SessionID), Generation: r.Generation}
		if e, err := cluster.ParseEgress(r.Egress); err == nil {
			d.Egress = e
		} else {
			d.Egress = cluster.Egress{Mode: cluster.EgressNone} // the table takes nothing else; what cannot be read opens nothing
		}
		if err := json.Unmarshal(r.Withheld, &d.Withheld); err != nil {
			return fmt.Errorf("read what session %s may not have any more: %w", r.SessionID, err)
		}
		if d.Network, err = networkOf(r); err != nil {
			return err
		}
		if d.HostPeers, err = hostPeersOf(r); err != nil {
			return err
		}
		d.AuthorizedKeys, d.AllRun = cluster.KeyLines(r.SshKeys), r.AllRun
		if r.Desired == "stop" {
			d.Stop, d.Force, d.StopReason = true, r.ForceStop, cluster.Reason(r.StopReason)
			if !d.Force {
				d.Grace = cluster.StopGrace
			}
		}
		for _, w := range of[r.AgentID] {
			w.list = append(w.list, d)
			if g, known := w.told[d.Kernel]; !d.Stop && (!known || g != d.Generation) {
				untold = append(untold, r.ID)
			}
		}
	}
	for _, r := range removals { // newest generation first
		// A newer generation on the same agent replaces older ones by itself, and so does its removal.
		if key := r.KernelID + r.AgentID; !present[key] {
			present[key] = true
			for _, w := range of[r.AgentID] {
				w.list = append(w.list, cluster.DesiredKernel{Kernel: cluster.KernelID(r.KernelID), Session: cluster.SessionID(r.SessionID),
					Generation: r.Generation,
					Stop:       true, Force: true, StopReason: cluster.Reason(r.Reason)})
			}
		}
	}
	if len(untold) == 0 {
		return nil
	}
	return n.specify(ctx, batch, untold)
}

// specify adds the specifications of kernels whose agents do not have them. A kernel that changed since it was listed is left
// out: whoever changed it has woken its agent again.
func (n *Reports) specify(ctx context.Context, batch []*want, untold []string) error {
	rows, err := n.Store.KernelSpecs(ctx, untold)
	if err != nil {
		return fmt.Errorf("read specifications of kernels: %w", err)
	}
	secrets, err := n.secretsOf(ctx, rows)
	if err != nil {
		return err
	}
	pulling, err := image.AutoPullOf(ctx, n.Store)
	if err != nil {
		return err
	}
	specs := make(map[cluster.KernelID]dbgen.KernelSpecsRow, len(rows))
	for _, r := range rows {
		specs[cluster.KernelID(r.ID)] = r
	}
	for _, w := range batch {
		w.list = slices.DeleteFunc(w.list, func(d cluster.DesiredKernel) bool {
			g, known := w.told[d.Kernel]
			r, found := specs[d.Kernel]
			return !d.Stop && (!known || g != d.Generation) && (!found || r.Generation != d.Generation)
		})
		for i, d := range w.list {
			if g, known := w.told[d.Kernel]; !d.Stop && (!known || g != d.Generation) {
				w.list[i].Spec = kernelSpec(specs[d.Kernel])
				w.list[i].Spec.PeerSecret, w.list[i].Spec.AutoPull = secrets[d.Session], pulling
			}
		}
	}
	return nil
}

func kernelSpec(r dbgen.KernelSpecsRow) *cluster.KernelSpec {
	k := &cluster.KernelSpec{
		Image: r.Image, ImageDigest: r.ImageDigest,
		ImageLabels: r.ImageLabels, RegistryType: "local", AutoPull: cluster.PullDigest, Hostname: r.ClusterHostname,
		Hosts: []string{}, Env: map[string]string{}, Slots: r.RequestedSlots, UID: -1, GID: -1, ExtraGIDs: store.Ints(r.ContainerGids),
		SessionName: r.SessionName, SessionType: r.SessionType, RuntimeType: r.ImageLabels[image.LabelRuntimeType],
		RuntimePath:  r.ImageLabels[image.LabelRuntimePath],
		PreopenPorts: store.Ints(r.PreopenPorts), ServicePorts: r.ImageLabels[image.LabelServicePorts], ClusterRole: r.ClusterRole,
		ClusterIdx: int(r.ClusterIdx),
		LocalRank:  int(r.LocalRank), ShmBytes: cluster.DefaultShmem,
	}
	if r.ImageRegistryType != nil {
		k.RegistryType = *r.ImageRegistryType
	}
	if text := string(r.Allocation); text != "{}" && text != "null" {
		k.Allocation = text
	}
	k.HostNetwork = r.ResourceOpts["network"] == cluster.NetworkHost
	if n, err := strconv.ParseInt(r.ResourceOpts["shmem"], 10, 64); err == nil {
		k.ShmBytes = n
	}
	if r.ShmemBytes != nil {
		k.ShmBytes = *r.ShmemBytes
	}
	if r.ContainerUid != nil {
		k.UID = int(*r.ContainerUid)
	}
	if r.ContainerMainGid != nil {
		k.GID = int(*r.ContainerMainGid)
	}
	if r.StartupCommand != nil {
		k.StartupCommand = *r.StartupCommand
	}
	if r.BootstrapScript != nil {
		k.BootstrapScript = *r.BootstrapScript
	}
	if r.RoleBootstrapScript != nil {
		k.BootstrapScript = *r.RoleBootstrapScript
	}
	if r.BatchTimeoutMs != nil {
		k.BatchTimeout = time.Duration(*r.BatchTimeoutMs) * time.Millisecond
	}
	environ := r.Environ
	if r.RoleEnviron != nil { // all that kernels of the role have
		environ = r.RoleEnviron
	}
	for name, v := range environ {
		k.Env[name] = v
	}
	for name, v := range clusterEnv(r) {
		k.Env[name] = v
	}
	if err := json.Unmarshal(r.Mounts, &k.Mounts); err != nil || len(k.Mounts) == 0 {
		k.Mounts = nil // what the database made of its own columns can be read
	}
	k.Dotfiles = tenancy.MergeDotfiles(r.DomainDotfiles, r.ProjectDotfiles, r.KeypairDotfiles)
	if len(r.SshKeys) > 0 {
		k.Dotfiles = append(k.Dotfiles, cluster.Dotfile{Path: cluster.AuthorizedKeys, Perm: "600",
			Data: strings.Join(cluster.KeyLines(r.SshKeys), "\n") + "\n"})
	}
	return k
}

// clusterEnv is what programs in a container may know of their session.
func clusterEnv(r dbgen.KernelSpecsRow) map[string]string {
	hosts := []string{"main1"}
	for i := range r.ClusterSize - 1 {
		hosts = append(hosts, fmt.Sprintf("sub%d", i+1))
	}
	var preopen []string
	for _, p := range r.PreopenPorts {
		preopen = append(preopen, fmt.Sprint(p))
	}
	env := map[string]string{
		"BACKENDAI_USER_UUID": r.UserID, "BACKENDAI_USER_EMAIL": r.UserEmail, "BACKENDAI_USER_NAME": r.UserName,
		"BACKENDAI_SESSION_ID": r.SessionID, "BACKENDAI_SESSION_NAME": r.SessionName, "BACKENDAI_ACCESS_KEY": r.AccessKey,
		"BACKENDAI_KERNEL_ID": r.ID, "BACKENDAI_KERNEL_IMAGE": r.Image,
		"BACKENDAI_CLUSTER_SIZE": fmt.Sprint(r.ClusterSize), "BACKENDAI_CLUSTER_REPLICAS": r.Replicas,
		"BACKENDAI_CLUSTER_HOSTS": strings.Join(hosts, ","),
		"BACKENDAI_CLUSTER_HOST":  r.ClusterHostname, "BACKENDAI_CLUSTER_ROLE": r.ClusterRole, "BACKENDAI_CLUSTER_IDX": fmt.Sprint(r.ClusterIdx),
		"BACKENDAI_CLUSTER_LOCAL_RANK": fmt.Sprint(r.LocalRank), "BACKENDAI_SERVICE_PORTS": r.ImageLabels[image.LabelServicePorts],
		"BACKENDAI_PREOPEN_PORTS": strings.Join(preopen, ","),
	}
	if r.SudoSessionEnabled {
		env["SUDO_SESSION_ENABLED"] = "1"
	}
	return env
}
