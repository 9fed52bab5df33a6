package run

// A call of PathConfine upgrades its connection to ConfineProtocol. After 101 the agent sends one message: a Confinement in JSON, at
// most MaxConfinement bytes, along with as many descriptors of open files as it counts (SCM_RIGHTS). The runner answers ConfineDone
// and closes the connection. Calling again replaces what was sent before. Added 2026-11-22.
const (
	ConfineProtocol = "berth-confine/1"
	MaxConfinement  = 1024
	MaxConfineFiles = 8
	ConfineDone     = "done\n"
)

// Confinement says what the descriptors are that come with it: first Procs files to which the number of every process of the user is
// written as soon as it exists, then, with OOM, one in which the kernel counts kills for want of memory. None at all says that there
// are no groups on this host: processes start in those of the container.
type Confinement struct {
	Procs int  `json:"procs"`
	OOM   bool `json:"oom,omitempty"`
}
