package plan

// Owned is what belongs to a user, project or domain, in numbers.
type Owned struct {
	// Live are live sessions, Waiting those of them that wait to start.
	Live, Waiting int
	// Folders are their folders, Shared those of them that others have a share of; Borrowed are shares of others' folders.
	Folders, Shared, Borrowed int
	Keypairs, Tokens          int
	Members                   int // memberships in projects
	Users, Projects           int // of a domain
}

// Fate is what becomes of one kind of thing.
type Fate struct {
	What  string
	Count int
	Words string
}

// waits is what becomes of sessions that wait to start: the scheduler holds them (scheduler.WaitsForOwner).
const waits = "will not, until it is active again"

// Inactive tells what becomes of what somebody has when they become inactive: nothing is removed, and all of it is as before when they are
// active again. What there is none of is left out.
func Inactive(k Kind, o Owned) (out []Fate) {
	add := func(what string, n int, words string) {
		if n > 0 {
			out = append(out, Fate{what, n, words})
		}
	}
	letIn := "let nobody in until it is active again"
	if k == Project {
		add("sessions that run", o.Live-o.Waiting, "run on without the folders of the project, and their apps are closed")
	} else {
		add("sessions that run", o.Live-o.Waiting, "run on with the folders of their own users alone; connections to them and their apps end")
	}
	add("sessions that wait to start", o.Waiting, waits)
	switch k {
	case Project:
		add("folders", o.Folders, "stay, and there are no new ones; running sessions lose them")
		add("memberships", o.Members, "stay")
		return out
	case Domain:
		add("users", o.Users, "are let in nowhere; their connections, apps and tokens end within a second")
		add("projects", o.Projects, "stay, and start nothing")
	}
	add("keypairs", o.Keypairs, letIn)
	add("API tokens", o.Tokens, letIn)
	add("folders", o.Folders-o.Shared, "stay with their files")
	add("shared folders", o.Shared, "stay, and those who have a share keep it")
	add("shares of others' folders", o.Borrowed, "stay, and running sessions lose these folders")
	add("memberships", o.Members, "stay")
	return out
}
