package request

import (
	"fmt"
	"maps"
	"regexp"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Role is some further kernels of a session, which have a label and differ from the others by what the role says.
type Role struct {
	Name         string
	Count        int
	Image        string            // reference or alias; "" is the session's
	Architecture string            // "" means any that the image has, or without an image the session's
	Resources    map[string]string // slot -> amount as written; nil: those of the session
	ResourceOpts map[string]string // shmem; what is not named is the session's
	// Environ comes over the session's, variable by variable; with Alone it is all that the kernels get of variables.
	Environ map[string]string
	Alone   bool
	// BootstrapScript nil means the session's; "" is none.
	BootstrapScript *string
}

const (
	maxRoles     = 16
	maxRoleSlots = 64
)

var roleName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// Containers is how many kernels the session has.
func (r *Session) Containers() int {
	n := r.ClusterSize
	for _, role := range r.Roles {
		n += role.Count
	}
	return n
}

// As is the request of a session all of whose kernels are of a role.
func (r *Session) As(role Role) Session {
	out := *r
	if role.Image != "" {
		out.Image, out.Architecture = role.Image, ""
	}
	if role.Architecture != "" {
		out.Architecture = role.Architecture
	}
	if role.Resources != nil {
		out.Resources, out.Preset = maps.Clone(role.Resources), ""
	}
	if role.ResourceOpts != nil {
		out.ResourceOpts = map[string]string{}
		maps.Copy(out.ResourceOpts, r.ResourceOpts)
		maps.Copy(out.ResourceOpts, role.ResourceOpts)
	}
	if role.HasEnviron() {
		out.Environ = map[string]string{}
		if !role.Alone {
			maps.Copy(out.Environ, r.Environ)
		}
		maps.Copy(out.Environ, role.Environ)
	}
	if role.BootstrapScript != nil {
		out.BootstrapScript = role.BootstrapScript
	}
	return out
}

// HasEnviron reports whether the kernels of the role get other variables than those of the session.
func (r Role) HasEnviron() bool { return r.Alone || len(r.Environ) > 0 }

// CheckRoleName refuses what cannot be the name of a role.
func CheckRoleName(name string) error {
	if roleName.MatchString(name) {
		return nil
	}
	return fault.Invalidf("%.64q is not the name of a role", name).WithNext("use 1 to 32 of a-z, 0-9 and -, beginning with a letter")
}

func (r *Session) checkRoles() error {
	if len(r.Roles) > maxRoles {
		return fault.Invalidf("the request has %d roles, %d are allowed", len(r.Roles), maxRoles)
	}
	var seen []string
	total := r.ClusterSize
	for _, role := range r.Roles {
		if err := CheckRoleName(role.Name); err != nil {
			return err
		}
		asked := r.As(role)
		if err := checkEnviron(asked.Environ); err != nil {
			return fmt.Errorf("role %s: %w", role.Name, err)
		}
		switch {
		case role.Name == cluster.RoleMain:
			return fault.Invalidf("%s is a role that every session has", role.Name).
				WithNext("choose another name: the main kernel is as the session itself says")
		case role.Name == cluster.RoleSub && r.ClusterSize > 1:
			return fault.Invalidf("role %s is that of the kernels which cluster_size counts", role.Name).
				WithNext("choose another name, or cluster_size 1")
		case asked.BootstrapScript != nil && len(*asked.BootstrapScript) > MaxScript:
			return fault.Invalidf("the bootstrap script of role %s has more than %d bytes", role.Name, MaxScript)
		case asked.BootstrapScript != nil && !isText(*asked.BootstrapScript):
			return fault.Invalidf("the bootstrap script of role %s holds a NUL character or is not UTF-8", role.Name)
		case slices.Contains(seen, role.Name):
			return fault.Invalidf("role %s is named twice", role.Name).WithNext("name it once, with the number of all its kernels")
		case role.Count < 1:
			return fault.Invalidf("role %s has %d kernels", role.Name, role.Count).WithNext("ask for 1 or more, or leave the role out")
		case len(role.Resources) > maxRoleSlots || len(role.ResourceOpts) > maxRoleSlots:
			return fault.Invalidf("role %s names more than %d resources", role.Name, maxRoleSlots)
		case !isText(role.Image):
			return fault.Invalidf("the image of role %s holds a NUL character or is not UTF-8", role.Name)
		}
		seen = append(seen, role.Name)
		if total += role.Count; total > maxClusterSize {
			return fault.Invalidf("a cluster has 1 to %d containers, and the roles of this one ask for more", maxClusterSize).
				WithNext("ask for fewer")
		}
	}
	return nil
}
