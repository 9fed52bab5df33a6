package app

import (
	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

// mainKernel is the name of every session's main kernel.
const mainKernel = "main1"

// place is a session with the kernel that a verb is about; "" is the main one.
type place struct {
	api.SessionInfo
	kernel string
}

// ref is how the API names the place.
func (p place) ref() string { return frame.InKernel(p.ID, p.kernel) }

// text words the place.
func (p place) text() string {
	if p.kernel == "" {
		return "session " + p.Name
	}
	return "kernel " + p.kernel + " of session " + p.Name
}

// operand is how verbs are told of the place.
func (p place) operand() string {
	if p.kernel == "" {
		return p.Name
	}
	return "--kernel " + p.kernel + " " + p.Name
}
