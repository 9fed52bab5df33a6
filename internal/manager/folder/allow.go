package folder

import (
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// HostPermissions are permissions by host, as policies list them.
type HostPermissions map[string][]HostPermission

// Checked is what domains, projects and policies store; it refuses what names no host or no permission. Hosts need not be there now.
func (h HostPermissions) Checked() (map[string]any, error) {
	out := make(map[string]any, len(h))
	for host, list := range h {
		if _, err := cluster.ParseVolumeHost(host); err != nil {
			return nil, err
		}
		for _, one := range list {
			if !slices.Contains(AllPermissions(), one) {
				return nil, fault.Invalidf("%.60q is no permission on folder hosts", string(one)).WithNext("use one of %v", AllPermissions())
			}
		}
		slices.Sort(list)
		out[host] = slices.Compact(list)
	}
	return out, nil
}

// CheckHosts is Checked for permissions as words.
func CheckHosts(of map[string][]string) (map[string]any, error) {
	h := HostPermissions{}
	for host, words := range of {
		h[host] = make([]HostPermission, len(words))
		for i, w := range words {
			h[host][i] = HostPermission(w)
		}
	}
	return h.Checked()
}

// PermissionWords are AllPermissions as words.
func PermissionWords() []string {
	var out []string
	for _, p := range AllPermissions() {
		out = append(out, string(p))
	}
	return out
}
