package platform

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

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

// bindsApps is a name of the API that browsers are told to reach by TLS alone although this process serves apps on plain ports of it; ""
// when there is none. Only the operator knows about other processes.
func bindsApps(s Settings) string {
	m, apps := s.Manager, s.AppProxy
	if !m.HSTS || !m.TLS.On() || m.TLS.Generated || apps.Listen == "" || apps.Ports.From == 0 || apps.Ports.TLS {
		return ""
	}
	names := m.TLS.Names
	if u, err := url.Parse(m.URL); err == nil {
		names = append(slices.Clone(names), u.Hostname())
	}
	for _, name := range names {
		if name != "" && net.ParseIP(name) == nil && strings.EqualFold(name, apps.Ports.Host) {
			return name
		}
	}
	return ""
}

// plainAppsFindings is about apps that browsers cannot reach because of manager.hsts.
func plainAppsFindings(s Settings) []Finding {
	name := bindsApps(s)
	if name == "" {
		return nil
	}
	return []Finding{{Warning: true, Kind: "plain-apps", Object: "apps on ports of " + name,
		Problem: "browsers that saw the API reach this name by TLS alone for a year, and the apps speak plain HTTP",
		Next:    "set appproxy.ports.tls = true, or appproxy.ports.host to another name, or manager.hsts = false"}}
}
