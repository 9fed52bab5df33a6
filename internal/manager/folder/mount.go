package folder

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

const (
	sessionHome = cluster.SessionHome
	maxMounts   = 64
)

// targetsOf are default targets of names that programs look for elsewhere.
var targetsOf = map[string]string{".linuxbrew": "/home/linuxbrew/.linuxbrew"}

// source is one thing that a session asks to mount: a folder, or a directory inside one.
type source struct {
	text    string // as the request writes it
	folder  string // name or id
	byID    bool
	subpath string // cleaned path inside the folder; "." is the whole folder
	target  string // as the request writes it; "" is the default
	perm    cluster.MountPermission
}

// sources parses a request into the things to mount. It looks up no folders.
func (r MountRequest) sources() ([]source, error) {
	var out []source
	used := map[string]bool{}
	take := func(texts []string, targets map[string]string, byID bool) error {
		all := slices.Clone(texts)
		for _, t := range sortedKeys(targets) {
			if !slices.Contains(all, t) {
				all = append(all, t)
			}
		}
		seen := map[string]bool{}
		for _, t := range all {
			if seen[t] {
				continue
			}
			seen[t] = true
			o, named := r.Options[t]
			used[t] = used[t] || named
			src, err := readSource(t, byID, o)
			if err != nil {
				return err
			}
			src.target = o.Target
			if src.target == "" {
				src.target = targets[t]
			}
			out = append(out, src)
		}
		return nil
	}
	if err := take(r.Mounts, r.MountMap, false); err != nil {
		return nil, err
	}
	if err := take(r.MountIDs, r.MountIDMap, true); err != nil {
		return nil, err
	}
	if len(out) > maxMounts {
		return nil, fault.Invalidf("a session mounts at most %d folders, not %d", maxMounts, len(out))
	}
	for _, t := range sortedKeys(r.Options) {
		if !used[t] {
			return nil, fault.Invalidf("there are mount options for %.80q, which is not among the mounts", t).WithNext("name it in mounts, too")
		}
	}
	return out, nil
}

func readSource(text string, byID bool, o MountOption) (source, error) {
	folder, sub, _ := strings.Cut(text, "/")
	src := source{text: text, folder: folder, byID: byID, perm: o.Permission}
	if folder == "" {
		return src, fault.Invalidf("%.80q names no folder to mount", text).WithNext("write name or name/sub/directory")
	}
	if o.Permission != "" && !o.Permission.Valid() {
		return src, wrongPermission(o.Permission)
	}
	if byID {
		id, ok := cluster.CanonicalUUID(folder)
		if !ok {
			return src, fault.Invalidf("%.80q is no id of a folder", folder).WithNext("give the id of a folder, or its name in mounts")
		}
		src.folder = id
	}
	var err error
	if src.subpath, err = filePath(sub); err != nil {
		return src, err
	}
	if o.Subpath != "" {
		more, err := filePath(o.Subpath)
		if err != nil {
			return src, err
		}
		if src.subpath != "." && src.subpath != more {
			return src, fault.Invalidf("the mount of %.80q has two different sub-paths", text)
		}
		src.subpath = more
	}
	return src, nil
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// mountable is a folder that a session names, with the facts that decide whether the session may mount it.
type mountable struct {
	Folder
	reach   bool
	permit  bool // policies give the owner mount-in-session on the folder's host
	volume  *seen
	most    cluster.MountPermission // that the session may have
	project cluster.ProjectID       // of the session
}

// foreign reports whether the folder is of another project than the session.
func (m mountable) foreign() bool { return m.Ownership == OfProject && m.ProjectID != m.project }

// check says why the folder cannot be mounted.
func (m mountable) check(owner string, src source) error {
	switch {
	case !m.reach:
		return authz.NotFound(noun, src.text)
	case m.UnmanagedPath != "":
		return fault.Invalidf("folder %s is an unmanaged path, which sessions cannot mount", m.Name)
	case m.Effective == "":
		return fault.Deniedf("%s has no permission for the files of folder %s (%s)", owner, m.Name, m.Host).WithReason("vfolder-permission-error")
	case !m.permit:
		return permits{}.need(authz.Actor{Email: owner}, PermitMount, m.Host, m.Name)
	case m.volume == nil:
		return fault.Unavailablef("folder %s cannot be mounted: no storage proxy has announced its host %s", m.Name, m.Host).
			WithReason("storage-proxy-unavailable").WithNext("ask an administrator to start the storage proxy")
	case src.perm.CanWrite() && !m.most.CanWrite():
		return fault.Invalidf("folder %s (%s) is read-only for %s and cannot be mounted as %s", m.Name, m.Host, owner, src.perm).
			WithReason("vfolder-permission-error").WithNext("mount it as ro, or ask %s for another permission", m.ownerWords())
	}
	return m.needStatus(m.Status.Mountable(), "mounted")
}

// at makes the mount. The permission is the lesser of the most that is allowed and what the request asks for.
func (m mountable) at(src source, target string) cluster.FolderMount {
	perm := m.most
	if src.perm != "" && (src.perm == cluster.ReadOnly || src.perm == cluster.ReadWrite && perm == cluster.ReadWriteDelete) {
		perm = src.perm
	}
	return cluster.FolderMount{Folder: m.ID, Name: m.Name, Host: m.Host, Scope: m.Scope.String(), Usage: string(m.Usage), Perm: perm,
		Subpath: src.subpath,
		Target:  target, VolumePath: m.volume.Path, OwnerUID: m.volume.OwnerUID, OwnerGID: m.volume.OwnerGID}
}

// planMounts decides what a session mounts. found[i] is the folder of sources[i]; nil means that this source is skipped. auto are the
// owner's dot-folders, which every session mounts. A source that cannot be mounted is an error; a dot-folder is just left out.
func planMounts(owner string, sources []source, found []*mountable, auto []mountable) ([]cluster.FolderMount, error) {
	out := []cluster.FolderMount{}
	names := map[string]bool{}
	for i, src := range sources {
		if found[i] != nil && src.target == "" {
			names[found[i].Name] = true
		}
	}
	for i, src := range sources {
		m := found[i]
		if m == nil || m.reach && m.foreign() {
			continue
		}
		if err := m.check(owner, src); err != nil {
			return nil, err
		}
		target, err := targetFor(m.Name, src.target)
		if err != nil {
			return nil, err
		}
		if alias := path.Clean(src.target); src.target != "" && !path.IsAbs(alias) && alias != m.Name && names[alias] {
			return nil, fault.Invalidf("%s cannot be mounted as %s: another mounted folder has that name", src.text, alias).
				WithNext("choose another target")
		}
		next := m.at(src, target)
		if i := slices.IndexFunc(out, func(o cluster.FolderMount) bool { return sameMount(o, next) }); i >= 0 {
			continue // named twice, by name and by id
		}
		if err := overlap(out, next); err != nil {
			return nil, err
		}
		out = append(out, next)
	}
	for _, m := range auto {
		if slices.ContainsFunc(out, func(o cluster.FolderMount) bool { return o.Folder == m.ID }) || m.check(owner, source{}) != nil {
			continue
		}
		target, err := targetFor(m.Name, "")
		if err != nil {
			continue
		}
		next := m.at(source{subpath: "."}, target)
		if overlap(out, next) == nil {
			out = append(out, next)
		}
	}
	return out, nil
}

func sameMount(a, b cluster.FolderMount) bool {
	return a.Folder == b.Folder && a.Subpath == b.Subpath && a.Target == b.Target && a.Perm == b.Perm
}

// overlap refuses a mount that has its source or its target inside another's, or around it.
func overlap(mounts []cluster.FolderMount, next cluster.FolderMount) error {
	for _, m := range mounts {
		if m.Folder == next.Folder && (within(m.Subpath, next.Subpath) || within(next.Subpath, m.Subpath)) {
			return fault.Invalidf("folder %s is mounted twice: %s and %s overlap", next.Name, m.Subpath, next.Subpath).WithNext("mount one of them")
		}
		if within(m.Target, next.Target) || within(next.Target, m.Target) {
			return fault.Invalidf("folders %s and %s would be mounted over each other: %s and %s", m.Name, next.Name, m.Target, next.Target).
				WithNext("give them other targets")
		}
	}
	return nil
}

// within reports whether clean path b is a or lies below it; "." holds every relative one.
func within(a, b string) bool {
	return a == "." || a == b || strings.HasPrefix(b, strings.TrimSuffix(a, "/")+"/")
}

// targetFor is where a folder is mounted in the container: absolute as it is, relative below the home directory.
func targetFor(name, wanted string) (string, error) {
	if wanted == "" {
		if t, ok := targetsOf[name]; ok {
			return t, nil
		}
		wanted = name
	}
	bad := func(why string) (string, error) {
		return "", fault.Invalidf("folder %s cannot be mounted at %.200q: %s", name, wanted, why).
			WithNext("choose another target, such as %s/%s", sessionHome, name)
	}
	if slices.Contains(strings.Split(wanted, "/"), "..") {
		return bad("it has ..")
	}
	target := path.Clean(wanted)
	if !path.IsAbs(target) {
		target = path.Join(sessionHome, target)
	}
	if err := cluster.CheckTarget(target); err != nil {
		return "", fmt.Errorf("mount folder %s: %w", name, err)
	}
	if rest, below := strings.CutPrefix(target, sessionHome+"/"); below {
		top, _, _ := strings.Cut(rest, "/")
		if slices.Contains(reserved, top) || dotNames.MatchString(top) {
			return bad("the path is reserved")
		}
	}
	return target, nil
}
