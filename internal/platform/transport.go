package platform

import (
	"fmt"

	"berth.dev/berth/internal/manager"
)

// Encryption is how `berth status` says whether the way to the API is encrypted.
type Encryption struct {
	On bool `json:"on"`
	// Fingerprint is that of a generated authority, which clients pin by BERTH_CA_FINGERPRINT.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Exposed says that other machines reach the API by plain HTTP, and nobody said that this is meant.
	Exposed bool `json:"exposed,omitempty"`
}

// String is one line for people.
func (e Encryption) String() string {
	switch {
	case e.Fingerprint != "":
		return "on, by a certificate authority of its own: BERTH_CA_FINGERPRINT=" + e.Fingerprint
	case e.On:
		return "on"
	case e.Exposed:
		return "OFF, and other machines reach the API: set manager.tls (see docs/ways-in.md)"
	}
	return "off; to serve other machines set manager.listen and manager.tls.generated = true"
}

// endpointOf is the URL that clients on this machine are told, given how the API is reached.
func endpointOf(t manager.Transport, addr string) string {
	switch {
	case t.URL != "":
		return t.URL
	case t.TLS:
		return "https://" + reachable(addr)
	}
	return "http://" + reachable(addr)
}

func encryptionOf(t manager.Transport) Encryption {
	return Encryption{On: t.TLS, Fingerprint: t.Fingerprint, Exposed: t.Exposed}
}

const (
	exposedProblem = "serves plain HTTP to other machines: whoever is on the way reads everything, and changes what is not signed"
	exposedNext    = "set manager.tls.generated = true, or manager.tls.cert and .key, or manager.tls.acme; where a reverse proxy adds TLS " +
		"set manager.plain_http = true"
)

// TransportFindings are the findings about the way to the API.
func TransportFindings(t manager.Transport, addr string) []Finding {
	if !t.Exposed {
		return nil
	}
	return []Finding{{Warning: true, Kind: "plain-http", Object: fmt.Sprintf("API at %s", addr), Problem: exposedProblem, Next: exposedNext}}
}
