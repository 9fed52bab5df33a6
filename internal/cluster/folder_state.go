package cluster

import "slices"

// FolderStatus is where a folder is in its life.
type FolderStatus string

// The statuses, in the wire's words. Performing is a folder that its proxy has not confirmed yet. Mounted is never
// written here: what mounts a folder are the live sessions' rows.
const (
	FolderReady          FolderStatus = "ready"
	FolderPerforming     FolderStatus = "performing"
	FolderCloning        FolderStatus = "cloning"
	FolderMounted        FolderStatus = "mounted"
	FolderError          FolderStatus = "error"
	FolderDeletePending  FolderStatus = "delete-pending"
	FolderDeleteOngoing  FolderStatus = "delete-ongoing"
	FolderDeleteComplete FolderStatus = "delete-complete"
	FolderDeleteError    FolderStatus = "delete-error"
)

// FolderMove is an allowed change of a folder's status.
type FolderMove struct {
	From, To FolderStatus
	// Why is what makes it happen, for the drawing and for people.
	Why string
}

// FolderMoves is the table of all moves; whatever is not here is refused, in Go and by the guards of the SQL.
var FolderMoves = []FolderMove{
	{FolderPerforming, FolderReady, "the proxy made it"},
	{FolderPerforming, FolderDeleteOngoing, "making it failed"},
	{FolderCloning, FolderReady, "the copy is complete"},
	{FolderCloning, FolderError, "the copy failed"},
	{FolderReady, FolderDeletePending, "put into the trash bin"},
	{FolderMounted, FolderDeletePending, "put into the trash bin"},
	{FolderError, FolderDeletePending, "put into the trash bin"},
	{FolderDeletePending, FolderReady, "restored"},
	{FolderDeletePending, FolderDeleteOngoing, "deleted forever"},
	{FolderDeleteError, FolderDeleteOngoing, "deleted forever, again"},
	{FolderDeleteOngoing, FolderDeleteComplete, "the proxy removed it"},
	{FolderDeleteOngoing, FolderDeleteError, "the proxy cannot remove it"},
}

// FolderMayMove reports whether the table has the move.
func FolderMayMove(from, to FolderStatus) bool {
	return slices.ContainsFunc(FolderMoves, func(m FolderMove) bool { return m.From == from && m.To == to })
}

// FolderSources are the statuses from which a folder may move to another.
func FolderSources(to FolderStatus) []string {
	var out []string
	for _, m := range FolderMoves {
		if m.To == to {
			out = append(out, string(m.From))
		}
	}
	return out
}

// Readable reports whether the folder's files may be looked at.
func (s FolderStatus) Readable() bool {
	switch s {
	case FolderReady, FolderMounted, FolderCloning, FolderPerforming, FolderError, FolderDeletePending:
		return true
	}
	return false
}

// Updatable reports whether the folder and its files may be changed.
func (s FolderStatus) Updatable() bool { return s == FolderReady || s == FolderMounted }

// Mountable reports whether sessions may mount the folder.
func (s FolderStatus) Mountable() bool { return s == FolderReady || s == FolderMounted }

// Deleting reports whether the folder is in the trash bin or beyond; its name is free for others.
func (s FolderStatus) Deleting() bool {
	switch s {
	case FolderDeletePending, FolderDeleteOngoing, FolderDeleteComplete, FolderDeleteError:
		return true
	}
	return false
}

// Dead reports whether nothing but the row remains, or soon will.
func (s FolderStatus) Dead() bool {
	return s == FolderDeleteOngoing || s == FolderDeleteComplete || s == FolderDeleteError
}
