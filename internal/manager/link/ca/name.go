package ca

import (
	"slices"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/proxy"
)

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

func plainName(name string, longest int) bool {
	ok := len(name) >= 1 && len(name) <= longest && !slices.ContainsFunc([]byte(name), func(c byte) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.')
	})
	return ok && name[0] != '.' && name[0] != '-'
}
