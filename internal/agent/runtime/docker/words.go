package docker

import (
	"regexp"
	"strings"

	cerrdefs "github.com/containerd/errdefs"

	"berth.dev/berth/internal/fault"
)

// aside is an error of the engine as the cause of one of ours. It has no words: what the engine says names paths of this host, its own
// parts and at times credentials, and reaches users with the state of their session. Its kind is still found by errors.Is and As.
type aside struct{ err error }

func (a aside) Error() string { return "" }

func (a aside) Unwrap() error { return a.err }

// aside keeps the engine's words for the agent's log. what says what was tried, on what; it is what users see.
func (r *Runtime) aside(what string, err error) error {
	level := r.log.Warn
	if cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) || cerrdefs.IsNotModified(err) {
		level = r.log.Debug // part of the usual course of things
	}
	level("the container engine refused", "what", what, "engine", err)
	return aside{err}
}

// saying are words of engines and what they mean; the first that fits counts. A meaning that begins with "program" gets its name.
var saying = []struct {
	all  []string // every one of them is in the text, which is in lower case
	mean string
	next string
}{
	{[]string{"setting rlimit"}, "the engine may not give the container its limits",
		"ask an administrator to look at the limits of the agent's host"},
	{[]string{"executable file not found"}, "program is not in the image", "use an image that has it"},
	{[]string{"exec", "no such file or directory"}, "program, or its interpreter, is not in the image", "use an image that has it"},
	{[]string{"exec format error"}, "the image is made for another kind of processor", "use an image of the agent's architecture"},
	{[]string{"exec", "permission denied"}, "program may not be executed", "use an image in which it is executable"},
	{[]string{"mount", "not a directory"}, "a mount is a file on one side and a directory on the other", "mount it at another path"},
	{[]string{"mount"}, "something cannot be mounted into the container", "ask an administrator to look at the agent's log"},
	{[]string{"cannot allocate memory"}, "the agent's host has no memory left", "try again later"},
	{[]string{"resource temporarily unavailable"}, "the agent's host cannot start more processes", "try again later"},
	{[]string{"already in use"}, "something of that name is in use", "try again"},
	{[]string{"no such container"}, "the container is gone", "start the session again"},
	{[]string{"oci runtime"}, "the engine could not start the container", "ask an administrator to look at the agent's log"},
	{[]string{"cgroup"}, "the engine could not give the container its limits", "ask an administrator to look at the agent's log"},
}

// program is how engines name what they could not start: it is what the image or the session asked for.
var program = regexp.MustCompile(`exec: "([^"]{1,200})"`)

func programOf(said string) string {
	if m := program.FindStringSubmatch(said); m != nil {
		return "the program " + m[1]
	}
	return "the program to start"
}

const askAdministrator = "try again; if it lasts, ask an administrator to look at the agent's log"

// meaning is what the engine says in our words, with a next step.
func meaning(said string) (mean, next string) {
	text := strings.ToLower(said)
	for _, s := range saying {
		fits := true
		for _, part := range s.all {
			fits = fits && strings.Contains(text, part)
		}
		if !fits {
			continue
		}
		if rest, ok := strings.CutPrefix(s.mean, "program"); ok {
			return programOf(said) + rest, s.next
		}
		return s.mean, s.next
	}
	return "the container engine refused it", askAdministrator
}

// stateWords are what the engine says of a container that it could not start; "" when it says nothing.
func stateWords(text string) string {
	if text == "" {
		return ""
	}
	mean, next := meaning(text)
	return mean + "; " + next
}

// refused is a fault about something that the engine would not do.
func (r *Runtime) refused(kind fault.Kind, what string, err error) *fault.Error {
	mean, next := meaning(err.Error())
	return fault.New(kind, "%s: %s", what, mean).WithCause(r.aside(what, err)).WithNext("%s", next)
}
