// Package host is the contract between the keeper and the place where kernels have their files, folders and runners. The
// keeper says what a kernel needs; a Host makes it available to the container engine and knows the way to the runner
// inside. Package host/local does that with directories, mounts and sockets of this machine; a Host of pods on other
// machines would do it with their volumes and connections. All pass the conformance suite in host/conformance.
//
// A Host decides nothing about kernels and knows no container engine.
package host

import (
	"context"
	"io/fs"
	"slices"
	"strings"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/run"
)

const (
	// ReasonOwnDisk is the reason of failures for want of room on a session's own disk, which says nothing about the host.
	ReasonOwnDisk = "session-disk-full"
	// ReasonHome is the reason (with Invalid) of failures that follow from what lies in a session's home, or is to be written there.
	ReasonHome = "home-unusable"
)

// Where the parts of a kernel are inside its container.
const (
	// Home is the user's home directory, UserName its owner.
	Home     = cluster.SessionHome
	UserName = "work"
	// ConfigDir holds the files of Content.Config, read-only.
	ConfigDir = "/home/config"
	// PrivateDir is the runner's directory: its program, its configuration, its socket and the result of a batch job.
	PrivateDir = "/.berth"
	RunnerName = "runner"
	ConfigName = "config.json"
)

// Entry is the command of every container: the runner with its configuration.
func Entry() []string { return []string{PrivateDir + "/" + RunnerName, PrivateDir + "/" + ConfigName} }

// Content is what a kernel's container is to find.
type Content struct {
	UID, GID int
	// Generation keeps the private parts of different generations apart.
	Generation int64
	// Work files are written below the home unless they exist; with Replace they are written anyway.
	Work []File
	// Folders are what Attach made. Those below the home are mounted on directories of the user's.
	Folders []runtime.Mount
	// Config files are written below ConfigDir. Passwd and Group replace the image's files of these names.
	Config        []File
	Passwd, Group []byte
	Runner        run.Config
}

// Points are the directories below the home, relative and in order, on which folders are mounted.
func (c Content) Points() []string {
	var out []string
	for _, m := range c.Folders {
		if p, ok := strings.CutPrefix(m.Target, Home+"/"); ok {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// MountPoints are the places of a container where every kernel has a mount of the platform's.
func MountPoints() []string {
	return []string{PrivateDir, Home, ConfigDir, "/etc/passwd", "/etc/group"}
}

// File is one small file to write.
type File struct {
	Path    string // relative, slashes
	Mode    fs.FileMode
	Data    []byte
	Replace bool
}

// Traces are the markers of a runner.
type Traces struct {
	// Started: the command of a batch session was started, or was about to be.
	Started bool
	// Ended: the runner ended in good order, not by a crash.
	Ended bool
	// Absent: there are no files of that generation, so that missing markers mean nothing once it had a container.
	Absent bool
}

// Owner is the user of a session, as numbers.
type Owner struct {
	UID, GID int
	// Own: no other session has this user number, so no file of a folder has it. A folder whose files cannot be made to appear as this
	// user's is refused with ReasonShared (Invalid).
	Own bool
}

// ReasonShared refuses a folder for a user number of the session's own; the session can have it as the user that sessions share.
const ReasonShared = "user-number-shared"

// The reasons of Withhold.
const (
	// ReasonHeld: programs of the container keep hold of a folder that was to be taken away (Conflict).
	ReasonHeld = "folder-held"
	// ReasonCannot: this host cannot change the mounts of containers that run (Invalid).
	ReasonCannot = "mounts-unchangeable"
)

// Host keeps what kernels need outside of their containers. All methods may be called at the same time, and again after an
// agent was killed in the middle of one. Errors are faults: Unavailable for what may come back (wait), Exhausted for a full
// disk, NotFound and Invalid for folders that are not there or cannot be mounted.
type Host interface {
	// Attach makes folders available for a kernel and returns their mounts, in the order given. What an earlier call attached
	// is replaced. After an error the caller calls Release, or Attach for another owner.
	Attach(ctx context.Context, kernel cluster.KernelID, owner Owner, folders []cluster.FolderMount) ([]runtime.Mount, error)
	// Detach takes back what Attach made; a container that has it keeps it. Nothing attached is no error.
	Detach(kernel cluster.KernelID) error

	// Prepare writes a kernel's files and returns the mounts that show them, and the folders of the content, in its container;
	// the runner's own are the last. The home of an earlier generation is kept, everything else of it is put away. Doing it twice
	// is no error. A folder whose mount point leads through a symbolic link in the home is Invalid, and so is a file of Content.Work
	// that cannot be written because of what lies in the home.
	Prepare(kernel cluster.KernelID, c Content) ([]runtime.Mount, error)
	// AddConfig writes one more file below ConfigDir of a kernel that is prepared.
	AddConfig(kernel cluster.KernelID, f File) error
	// Runner reads the runner's configuration of a kernel back.
	Runner(kernel cluster.KernelID) (run.Config, error)
	// Result reads what the runner recorded about a batch job; nil when there is nothing (yet).
	Result(kernel cluster.KernelID) (*run.BatchResult, error)

	// Traces tells what the runner of one generation left behind, whether its container is still there or not.
	Traces(kernel cluster.KernelID, generation int64) (Traces, error)

	// Hello greets the runner of one generation.
	Hello(ctx context.Context, kernel cluster.KernelID, generation int64, token string) (run.Hello, error)
	// Verify is Denied when PID 1 of a container that this process has started is another program than the runner.
	Verify(c runtime.Observed) error
	// Confine separates the processes of the session's user from the runner, which starts none before. Where that cannot be done the
	// runner is told to go on without.
	Confine(ctx context.Context, kernel cluster.KernelID, token string, c runtime.Observed) error
	// Withhold takes folders out of a container that runs, or makes them read-only there. After it nobody in the container has them as
	// before, whatever they had open: programs that use them are killed. It fails with ReasonHeld when that cannot be brought about, and
	// with ReasonCannot where containers keep what they were started with. A folder that is not there, and a container that has ended,
	// are no errors.
	Withhold(ctx context.Context, c runtime.Observed, list []cluster.Withheld) error
	// SetKeys tells the runner all SSH keys that may log in besides the session's own and those that its user added. What logged in with
	// another key that the runner was told before ends. A runner that is too old for that is NotFound with run.ReasonTooOld.
	SetKeys(ctx context.Context, kernel cluster.KernelID, token string, keys []string) error
	// SetPeers tells the runner who the kernels of its session are; see run.PeersRequest.
	SetPeers(ctx context.Context, kernel cluster.KernelID, token string, req run.PeersRequest) error
	// Notice shows a text on the terminals of a kernel.
	Notice(ctx context.Context, kernel cluster.KernelID, token, text string) error
	// Forget drops what is kept open to a runner that is gone.
	Forget(kernel cluster.KernelID, generation int64)

	// List names the kernels of which something is here, in order and once each.
	List() ([]cluster.KernelID, error)
	// Release takes a kernel's folders back and then puts its files out of sight; an absent kernel is no error.
	Release(kernel cluster.KernelID) error
	// Reap deletes what was put out of sight, until ctx ends.
	Reap(ctx context.Context) error
}
