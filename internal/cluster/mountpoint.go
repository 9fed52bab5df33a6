package cluster

import (
	"path"
	"slices"
	"strings"

	"berth.dev/berth/internal/fault"
)

// ReasonTarget is the reason of the fault that CheckTarget returns.
const ReasonTarget = "mount-target-refused"

// SessionHome is the home directory of the session's user inside every container.
const SessionHome = "/home/work"

// maxFileName is how long the name of one file may be, in bytes, on the usual file systems.
const maxFileName = 255

// mountRoots are the only directories of a container below which folders may be mounted. All others belong to the image or to the
// platform. Self says that the directory itself may be a mount point, too.
var mountRoots = []struct {
	dir  string
	self bool
}{
	{"/home", false}, {"/mnt", false}, {"/media", false}, {"/srv", false}, {"/opt", false},
	{"/data", true}, {"/dataset", true}, {"/datasets", true}, {"/input", true}, {"/model", true}, {"/models", true}, {"/output", true},
	{"/pipeline", true}, {"/project", true}, {"/projects", true}, {"/scratch", true}, {"/shared", true}, {"/storage", true},
	{"/vfolder", true}, {"/vfolders", true}, {"/volume", true}, {"/volumes", true}, {"/workdir", true}, {"/workspace", true},
	{"/workspaces", true},
}

// closedRoots are directories below a mount root that stay closed: the platform's configuration, and programs of the platform and of
// drivers.
var closedRoots = []string{"/home/config", "/opt/backend.ai", "/opt/berth", "/opt/kernel", "/opt/nvidia", "/opt/rocm"}

// CheckTarget refuses a path that is no place for a folder inside a container. It is asked when a session is created, and again by
// the agent before every start of a container, because the agent does not trust what it is told.
func CheckTarget(target string) error {
	refuse := func(why string) error {
		return fault.Invalidf("no folder can be mounted at %.200q: %s", target, why).WithReason(ReasonTarget).
			WithNext("choose a target below %s, /mnt, /data or /workspace", SessionHome)
	}
	long := func(name string) bool { return len(name) > maxFileName }
	switch {
	case len(target) > 1024 || slices.ContainsFunc(strings.Split(target, "/"), long) || strings.ContainsAny(target, "\x00\n\r:"):
		return refuse("the path is too long or has characters that container engines do not take")
	case !path.IsAbs(target) || path.Clean(target) != target:
		return refuse("the path is not absolute and clean")
	case target == SessionHome, slices.ContainsFunc(closedRoots, func(dir string) bool { return inside(dir, target) }):
		return refuse("the path is reserved")
	}
	for _, r := range mountRoots {
		if inside(r.dir, target) && (r.self || r.dir != target) {
			return nil
		}
	}
	return refuse("the path is reserved")
}

// CheckTargets refuses targets that CheckTarget refuses, and a target that is another one or lies inside it.
func CheckTargets(mounts []FolderMount) error {
	for i, m := range mounts {
		if err := CheckTarget(m.Target); err != nil {
			return err
		}
		for _, o := range mounts[:i] {
			if inside(o.Target, m.Target) || inside(m.Target, o.Target) {
				return fault.Invalidf("folders %s and %s would be mounted over each other: %s and %s", o.Name, m.Name, o.Target, m.Target).
					WithReason(ReasonTarget).WithNext("give them other targets")
			}
		}
	}
	return nil
}

// inside reports whether a clean absolute path is dir or lies below it.
func inside(dir, p string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
