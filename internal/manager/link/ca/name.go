package ca

import (
	"slices"
	"strings"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/proxy"
)

// Role is what a node is in the cluster.
type Role string

// The roles of nodes that join through the agent port. Storage proxies and managers do not: they have the shared secret and the
// database.
const (
	RoleAgent    Role = "agent"
	RoleAppProxy Role = "appproxy"
)

// ParseRole reads a role as operators write it.
func ParseRole(text string) (Role, error) {
	switch r := Role(text); r {
	case RoleAgent, RoleAppProxy:
		return r, nil
	}
	return "", fault.Invalidf("there is no role %q that joins with a token", text).WithNext("use %s or %s", RoleAgent, RoleAppProxy)
}

// Node is an agent or an app proxy. The replicas of an app proxy are one node with several keys.
type Node struct {
	Role Role
	Name string
}

// String is what people call the node.
func (n Node) String() string {
	if n.Role == RoleAppProxy {
		return "app proxy " + n.Name
	}
	return "agent " + n.Name
}

// commonName is the node's name in its certificate.
func (n Node) commonName() string {
	if n.Role == RoleAppProxy {
		return proxy.NamePrefix + n.Name
	}
	return n.Name
}

// NodeOf reads a common name; the error says that no node can have it.
func NodeOf(commonName string) (Node, error) {
	n := Node{Role: RoleAgent, Name: commonName}
	if name, ok := strings.CutPrefix(commonName, proxy.NamePrefix); ok {
		n = Node{Role: RoleAppProxy, Name: name}
	}
	return n, n.check()
}

func (n Node) check() error {
	if _, err := ParseRole(string(n.Role)); err != nil {
		return err
	}
	if n.Role == RoleAppProxy {
		return CheckProxyName(n.Name)
	}
	return CheckAgentID(n.Name)
}

// maxProxyName keeps common names below the 64 characters that X.509 allows.
const maxProxyName = 64 - len(proxy.NamePrefix)

// CheckAgentID allows what is safe in paths, labels and certificates. A ':' is not, so that no agent has the common name
// of an app proxy or a manager.
func CheckAgentID(id string) error {
	if !plainName(id, 64) {
		return fault.Invalidf("the agent id %q is not allowed", id).
			WithNext("use 1 to 64 letters, digits, '-', '_' or '.', beginning with a letter, digit or '_'")
	}
	return nil
}

// CheckProxyName allows what is safe in paths, host names and certificates.
func CheckProxyName(name string) error {
	if !plainName(name, maxProxyName) {
		return fault.Invalidf("the app proxy's name %q is not allowed", name).
			WithNext("use 1 to %d letters, digits, '-', '_' or '.', beginning with a letter, digit or '_'", maxProxyName)
	}
	return nil
}

func plainName(name string, longest int) bool {
	ok := len(name) >= 1 && len(name) <= longest && !slices.ContainsFunc([]byte(name), func(c byte) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.')
	})
	return ok && name[0] != '.' && name[0] != '-'
}
