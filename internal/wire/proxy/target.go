package proxy

import (
	"encoding/json"

	"berth.dev/berth/internal/cluster"
)

// Target is one place that answers for a circuit, as its agent reported it; never what a caller said.
type Target struct {
	Kernel cluster.KernelID `json:"kernel"`
	Port   int              `json:"port"` // inside the kernel
	Agent  AgentAddress     `json:"agent"`
	// Weight is the target's share of new visitors, compared with the other targets' weights. A target of weight 0 is drained:
	// what is open to it stays, and nobody new is sent there.
	Weight int `json:"weight"`
	// Generation is the kernel's. Grant is what the proxy shows to the agent (HeaderGrant); the same revision of a circuit comes
	// again with a newer one before it expires. Both come from managers of version 3 on.
	Generation int64  `json:"generation,omitempty"`
	Grant      string `json:"grant,omitempty"`
}

// TargetID tells the targets of one circuit apart.
type TargetID struct {
	Kernel cluster.KernelID
	Port   int
}

// ID is the target's identity; where its agent is and how much it weighs may change.
func (t Target) ID() TargetID { return TargetID{t.Kernel, t.Port} }

// plainCircuit is a Circuit without its methods.
type plainCircuit Circuit

// circuitJSON is a circuit with the fields that version 1 had in place of targets.
type circuitJSON struct {
	plainCircuit
	Kernel cluster.KernelID `json:"kernel,omitempty"`
	Target int              `json:"target,omitempty"`
	Agent  *AgentAddress    `json:"agent,omitempty"`
}

// MarshalJSON writes the first target that takes visitors in the form of version 1, too.
func (c Circuit) MarshalJSON() ([]byte, error) {
	out := circuitJSON{plainCircuit: plainCircuit(c)}
	for i := range c.Targets {
		if t := &c.Targets[i]; t.Weight > 0 {
			out.Kernel, out.Target, out.Agent = t.Kernel, t.Port, &t.Agent
			break
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads a circuit of either form. More than MaxTargets targets are cut off.
func (c *Circuit) UnmarshalJSON(raw []byte) error {
	var in circuitJSON
	if err := json.Unmarshal(raw, &in); err != nil {
		return err
	}
	*c = Circuit(in.plainCircuit)
	if c.Targets == nil && in.Kernel != "" {
		t := Target{Kernel: in.Kernel, Port: in.Target, Weight: 1}
		if in.Agent != nil {
			t.Agent = *in.Agent
		}
		c.Targets = []Target{t}
	}
	c.Targets = c.Targets[:min(len(c.Targets), MaxTargets)]
	return nil
}
