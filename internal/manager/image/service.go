// Package image is the catalogue of images that sessions may run: what a reference or alias means, for whom an image is, which labels
// it carries, which agents offer it. Administrators import images, and the manager takes in those that it had made of sessions. What
// agents report changes nothing of the catalogue.
//
// It pulls and builds nothing: agents do. Its loop has agents delete images of sessions that nobody needs any more. Package node passes
// on which images agents report; session looks up what it runs; httpapi and graphapi list images and change aliases.
package image

import (
	"log/slog"
	"net/http"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
)

// noun is what errors call an image.
const noun = "image reference"

// Streams is the way to agents' byte streams.
type Streams interface {
	RoundTrip(agent cluster.AgentID, req *http.Request) (*http.Response, error)
}

// Deps are what the use cases need. Streams may be nil: agents are not reachable then.
type Deps struct {
	Store   *store.Store
	IDs     func() string
	Streams Streams
	Log     *slog.Logger
}

// Service is the use cases of images.
type Service struct{ d Deps }

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.IDs == nil || d.Log == nil {
		return nil, fault.New(fault.Internal, "image: a required dependency is missing")
	}
	return &Service{d: d}, nil
}
