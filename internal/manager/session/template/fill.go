package template

import (
	"maps"
	"slices"
	"strings"

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

// Fill gives a request for a session of several kernels what the cluster says; main is the template of its main kernel.
func (d *ClusterDocument) Fill(r request.Session, main *SessionDocument) request.Session {
	orElse(&r.Name, d.Metadata.Name)
	orElse(&r.ClusterMode, d.Mode)
	r.ClusterSize = 0
	for _, n := range d.Spec.Nodes {
		r.ClusterSize += n.Replicas
	}
	if r.Tag == nil && d.Metadata.Tag != "" {
		r.Tag = &d.Metadata.Tag
	}
	r.Environ = joined(d.Spec.Environ, r.Environ)
	mount(&r, d.Spec.Mounts)
	return main.Fill(r)
}

// SessionTemplates are the ids of the session templates that the nodes name, each once.
func (d *ClusterDocument) SessionTemplates() []string {
	var ids []string
	for _, n := range d.Spec.Nodes {
		ids = append(ids, n.SessionTemplate)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
