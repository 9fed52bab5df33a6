// Package image is the catalogue of images that sessions may run: what a reference or alias means, which labels an image
// carries, which agents have it.
//
// It pulls and builds nothing: agents do. Package node passes on which images agents report; session looks up what it runs; httpapi
// and graphapi list images and change aliases.
package image

import (
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
)

// noun is what errors call an image.
const noun = "image reference"

// Service is the use cases of images.
type Service struct{ store *store.Store }

// New makes the use cases; the store is required.
func New(s *store.Store) (*Service, error) {
	if s == nil {
		return nil, fault.New(fault.Internal, "image: the store is required")
	}
	return &Service{store: s}, nil
}
