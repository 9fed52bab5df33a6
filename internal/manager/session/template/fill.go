package template

import (
	"maps"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/session/request"
)

// Fill gives a request what it does not say itself. Environment variables are joined by name; of everything else the request's own
// counts alone. Environment variables and resources that are there but empty say that there are none; clients write folders always, so
// that no folders say nothing.
func (d *SessionDocument) Fill(r request.Session) request.Session {
	s := d.Spec
	orElse(&r.Name, d.Metadata.Name)
	orElse(&r.Type, s.SessionType)
	orElse(&r.Image, s.Kernel.Image)
	orElse(&r.Architecture, s.Kernel.Architecture)
	orElse(&r.ResourceGroup, s.ResourceGroup)
	if r.Tag == nil && d.Metadata.Tag != "" {
		r.Tag = &d.Metadata.Tag
	}
	r.Environ = joined(s.Kernel.Environ, r.Environ)
	if r.Resources == nil && r.Preset == "" {
		r.Resources = maps.Clone(s.Resources)
	}
	if len(r.Agents) == 0 {
		r.Agents = slices.Clone(s.Agents)
	}
	mount(&r, s.Mounts)
	run := Run{}
	if s.Kernel.Run != nil {
		run = *s.Kernel.Run
	}
	orElse(&r.StartupCommand, run.StartupCommand)
	if script := s.Kernel.Git.script() + run.Bootstrap; r.BootstrapScript == nil && script != "" {
		r.BootstrapScript = &script
	}
	return r
}

func orElse[T comparable](v *T, other T) {
	var none T
	if *v == none {
		*v = other
	}
}

func joined(under, over map[string]string) map[string]string {
	if len(under) == 0 || over != nil && len(over) == 0 {
		return over
	}
	out := maps.Clone(under)
	maps.Copy(out, over)
	return out
}

// mount gives a request that names no folders those of a template.
func mount(r *request.Session, mounts map[string]string) {
	if r.NamesFolders() || len(mounts) == 0 {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(mounts)) {
		r.Mounts = append(r.Mounts, name)
		if mounts[name] == "" {
			continue
		}
		if r.MountMap == nil {
			r.MountMap = map[string]string{}
		}
		r.MountMap[name] = mounts[name]
	}
}

// script clones the repository where it is not there yet.
func (g *Git) script() string {
	if g == nil {
		return ""
	}
	dir := g.DestinationDir
	if dir == "" {
		dir = strings.TrimSuffix(g.Repository[strings.LastIndex(g.Repository, "/")+1:], ".git")
	}
	clone := "git clone"
	if g.Branch != "" {
		clone += " --branch " + quote(g.Branch)
	}
	clone += " -- " + quote(g.Repository) + " " + quote(dir)
	if g.Commit != "" {
		clone = "{ " + clone + " && git -C " + quote(dir) + " checkout --quiet " + quote(g.Commit) + "; }"
	}
	return "[ -e " + quote(dir) + " ] || " + clone + "\n"
}

// quote makes one word of a shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// Fill gives a request for a session of several kernels what the cluster says, with the session templates that it names, by id. A node of
// the role sub with the template of the main kernel is further kernels without a role; each other node is a role. What the request says
// itself comes over the template of the main kernel; roles that it names stand in the place of the template's.
func (d *ClusterDocument) Fill(r request.Session, templates map[string]*SessionDocument) (request.Session, error) {
	orElse(&r.Name, d.Metadata.Name)
	orElse(&r.ClusterMode, d.Mode)
	if r.Tag == nil && d.Metadata.Tag != "" {
		r.Tag = &d.Metadata.Tag
	}
	named := r.NamesFolders()
	r.Environ = joined(d.Spec.Environ, r.Environ)
	shared := r.Environ
	mount(&r, d.Spec.Mounts)
	mainID := ""
	for _, n := range d.Spec.Nodes {
		if n.Role == cluster.RoleMain {
			mainID = n.SessionTemplate
		}
	}
	main := templates[mainID]
	r = main.Fill(r)
	r.ClusterSize = 1
	var roles []request.Role
	for _, n := range d.Spec.Nodes {
		t := templates[n.SessionTemplate]
		switch {
		case n.Role == cluster.RoleMain:
		case n.Role == cluster.RoleSub && n.SessionTemplate == mainID:
			r.ClusterSize += n.Replicas
		case n.SessionTemplate == mainID: // a label, and all else as the session says
			roles = append(roles, request.Role{Name: n.Role, Count: n.Replicas})
		default:
			if err := t.suits(n.Role, main, r, named); err != nil {
				return r, err
			}
			roles = append(roles, t.role(n, shared, r.BootstrapScript))
		}
	}
	if len(r.Roles) == 0 {
		r.Roles = roles
	}
	return r, nil
}

// role is the kernels of a node that has a session template of its own: nothing of the main kernel's template reaches them.
func (d *SessionDocument) role(n ClusterNode, shared map[string]string, scriptOfMain *string) request.Role {
	out := request.Role{Name: n.Role, Count: n.Replicas, Image: d.Spec.Kernel.Image, Architecture: d.Spec.Kernel.Architecture,
		Resources: map[string]string{}, Environ: joined(d.Spec.Kernel.Environ, shared), Alone: true}
	maps.Copy(out.Resources, d.Spec.Resources)
	script := d.Spec.Kernel.Git.script()
	if d.Spec.Kernel.Run != nil {
		script += d.Spec.Kernel.Run.Bootstrap
	}
	if script != "" || scriptOfMain != nil {
		out.BootstrapScript = &script
	}
	return out
}

// suits refuses a template of a role that says what a session has once for all its kernels, unless the session has just that.
func (d *SessionDocument) suits(role string, main *SessionDocument, r request.Session, named bool) error {
	refuse := func(what, next string) error {
		return fault.Invalidf("the session template of role %s names %s, which its kernels cannot have for themselves", role, what).
			WithNext("%s", next)
	}
	s := d.Spec
	if s.Kernel.Run != nil && s.Kernel.Run.StartupCommand != "" {
		return refuse("a startup command", "put it into the bootstrap script: the main kernel alone runs a startup command")
	}
	if s.ResourceGroup != "" && s.ResourceGroup != main.Spec.ResourceGroup {
		return refuse("resource group "+s.ResourceGroup, "name the resource group in the session template of the main kernel")
	}
	if len(s.Agents) > 0 && !slices.Equal(s.Agents, main.Spec.Agents) {
		return refuse("agents", "name agents in the session template of the main kernel")
	}
	if named { // folders of the request stand in the place of all
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(s.Mounts)) {
		if !slices.Contains(r.Mounts, name) || r.MountMap[name] != s.Mounts[name] {
			return refuse("folder "+name, "name it with the same path in spec.mounts of the cluster template: all kernels mount the same")
		}
	}
	return nil
}
