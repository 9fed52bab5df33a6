package docker

import (
	"context"
	"net/netip"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/fault"
)

// The options of a bridge network: containers on it may not reach each other, and the bridge has a name that rules can hold.
const (
	optionTalk      = "com.docker.network.bridge.enable_icc"
	optionInterface = "com.docker.network.bridge.name"
)

var _ runtime.BridgeHolder = (*Runtime)(nil)

// EnsureBridge makes the network unless it exists; see runtime.BridgeHolder. A network of that name that is not as it should be is
// made anew when no container is on it.
func (r *Runtime) EnsureBridge(ctx context.Context, spec runtime.BridgeSpec) (netip.Prefix, error) {
	ctx, cancel := context.WithTimeout(ctx, createCall)
	defer cancel()
	res, err := r.api.NetworkInspect(ctx, spec.Name, client.NetworkInspectOptions{})
	switch {
	case err == nil && !spec.Renew:
		if subnet, ok := bridgeOf(res.Network.Network, spec); ok {
			return subnet, nil
		}
	case err != nil && !cerrdefs.IsNotFound(err):
		return netip.Prefix{}, r.failure(err, "look for the network %s", spec.Name)
	}
	if err == nil {
		if err := r.RemoveBridge(ctx, spec.Name); err != nil {
			return netip.Prefix{}, err
		}
	}
	var last error
	for _, subnet := range spec.Subnets {
		_, last = r.api.NetworkCreate(ctx, spec.Name, client.NetworkCreateOptions{
			Driver: "bridge",
			IPAM: &network.IPAM{Driver: "default", Config: []network.IPAMConfig{
				{Subnet: subnet, Gateway: subnet.Masked().Addr().Next()},
			}},
			Options: map[string]string{optionTalk: "false", optionInterface: spec.Interface},
			Labels:  map[string]string{labelCluster: r.cfg.Cluster, labelAgent: string(r.cfg.Agent)},
		})
		if last == nil {
			return subnet, nil
		}
		if text := strings.ToLower(last.Error()); !strings.Contains(text, "overlap") && !strings.Contains(text, "conflicts with network") {
			return netip.Prefix{}, r.failure(last, "make the network %s", spec.Name)
		}
	}
	return netip.Prefix{}, fault.Exhaustedf("no subnet is free for the network %s of sessions", spec.Name).WithCause(last).
		WithNext("set agent.network.pool to private addresses that nobody uses, or remove unused networks: docker network prune")
}

// bridgeOf returns the subnet of a network that is as the specification says.
func bridgeOf(n network.Network, spec runtime.BridgeSpec) (netip.Prefix, bool) {
	if n.Driver != "bridge" || n.Options[optionTalk] != "false" || n.Options[optionInterface] != spec.Interface || len(n.IPAM.Config) != 1 {
		return netip.Prefix{}, false
	}
	subnet := n.IPAM.Config[0].Subnet
	return subnet, subnet.IsValid() && subnet.Addr().Is4()
}

// RemoveBridge removes a network; an absent one is no error.
func (r *Runtime) RemoveBridge(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, removeCall)
	defer cancel()
	if _, err := r.api.NetworkRemove(ctx, name, client.NetworkRemoveOptions{}); err != nil && !cerrdefs.IsNotFound(err) {
		return r.failure(err, "remove the network %s", name)
	}
	return nil
}
