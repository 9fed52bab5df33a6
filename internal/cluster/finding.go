package cluster

// Finding is something that should not be, as the doctor tells it.
type Finding struct {
	Severity string // error or warning
	Kind     string // stable slug
	Object   string
	Detail   string
	Next     string
}
