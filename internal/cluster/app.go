package cluster

import (
	"slices"
	"strconv"
	"strings"
)

// LabelServicePorts is the image label that declares apps; see ParseServicePorts.
const LabelServicePorts = "ai.backend.service-ports"

// AppPort is an app inside a kernel that an image declares: its ports are those where it listens in there.
type AppPort struct {
	Name     string
	Protocol string // tcp, http, preopen, vnc, rdp
	Ports    []int
}

// ReservedPorts are used inside every container, or stand for apps of the runner; neither images nor sessions can claim them.
var ReservedPorts = []int{2000, 2001, 2002, 2003, 2200, 2201, 7681}

// reservedApps are served by the runner of every container.
var reservedApps = []string{"sshd", "sftp", "ttyd"}

// appProtocols are what an image can declare.
var appProtocols = []string{"tcp", "http", "preopen", "vnc", "rdp"}

// The bounds of what an image can declare.
const (
	maxAppName  = 64
	maxAppPorts = 128 // in all
)

// ParseServicePorts reads the label "name:proto:port,name:proto:[p1,p2]". Entries that break the rules are left out: an
// image must not be able to stop a session by its label. The result is never nil.
func ParseServicePorts(label string) []AppPort {
	out := []AppPort{}
	seen := map[int]bool{}
	for label != "" {
		var item string
		open, shut := strings.IndexByte(label, '['), strings.IndexByte(label, ']')
		if open >= 0 && shut > open && !strings.Contains(label[:open], ",") {
			item = label[:shut+1]
			label = strings.TrimPrefix(label[shut+1:], ",")
		} else {
			item, label, _ = strings.Cut(label, ",")
		}
		p, ok := parseServicePort(item)
		if !ok || slices.ContainsFunc(p.Ports, func(n int) bool { return seen[n] }) ||
			slices.ContainsFunc(out, func(o AppPort) bool { return o.Name == p.Name }) || len(seen)+len(p.Ports) > maxAppPorts {
			continue
		}
		for _, n := range p.Ports {
			seen[n] = true
		}
		out = append(out, p)
	}
	return out
}

func parseServicePort(item string) (p AppPort, ok bool) {
	part := strings.SplitN(strings.TrimSpace(item), ":", 3)
	if len(part) != 3 || !appName(part[0]) || slices.Contains(reservedApps, part[0]) || !slices.Contains(appProtocols, part[1]) {
		return AppPort{}, false
	}
	p = AppPort{Name: part[0], Protocol: part[1]}
	for text := range strings.SplitSeq(strings.Trim(part[2], "[]"), ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 1025 || n > 65534 || slices.Contains(ReservedPorts, n) || slices.Contains(p.Ports, n) {
			return AppPort{}, false
		}
		p.Ports = append(p.Ports, n)
	}
	return p, true
}

// appName says whether a name can be that of an app: it becomes part of file names and of host names.
func appName(s string) bool {
	for i, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || c != '.' && c != '-' && c != '_') {
			return false
		}
	}
	return s != "" && len(s) <= maxAppName
}
