package image

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

const (
	removalsCalm    = 30 * time.Second // between looks for images to be deleted
	removalsAtOnce  = 32               // of one look
	removalsSoon    = 2 * time.Second  // while some are left
	removalAgain    = time.Minute      // at most, before the next attempt with an image in use or an agent that is away
	removalPatience = 30 * time.Second
	removalPath     = detailsPath + "/remove"
)

// Loops returns the control loop that has agents delete images of sessions that were forgotten or replaced. Their bytes count for
// their owner until that is done.
func (s *Service) Loops() []reconcile.Loop {
	return []reconcile.Loop{{
		Name:  "image-removal",
		Hears: func(topic string) bool { return topic == store.TopicImages },
		Begin: func(t reconcile.Term) reconcile.Work {
			return reconcile.Work{Pass: func(ctx context.Context) (time.Duration, error) {
				if err := t.Check(ctx); err != nil {
					return 0, err
				}
				if err := s.removeImages(ctx); err != nil {
					return 0, err
				}
				left, err := s.d.Store.PendingImageRemovals(ctx)
				if left {
					return removalsSoon, err
				}
				return removalsCalm, err
			}}
		},
	}}
}

func (s *Service) removeImages(ctx context.Context) error {
	if s.d.Streams == nil {
		return nil
	}
	due, err := s.d.Store.DueImageRemovals(ctx, removalsAtOnce)
	if err != nil {
		return fmt.Errorf("look for images to be deleted: %w", err)
	}
	silent := map[string]bool{} // agents that did not answer in this pass: each may keep the others waiting once
	for _, r := range due {
		// The next attempt is noted first: an agent that never answers keeps nobody else waiting.
		if err := s.d.Store.DeferImageRemoval(ctx, removalAgain, r.AgentID, r.Digest); err != nil {
			return fmt.Errorf("note an attempt to delete image %s: %w", r.Reference, err)
		}
		if silent[r.AgentID] {
			continue
		}
		answered, err := s.removeImage(ctx, r)
		if silent[r.AgentID] = !answered; err != nil {
			s.d.Log.Info("an image of a session is not deleted yet", "agent", r.AgentID, "image", r.Reference, "digest", r.Digest, "error", err)
			continue
		}
		if err := s.d.Store.DropImageRemoval(ctx, r.AgentID, r.Digest); err != nil {
			return fmt.Errorf("note that image %s is deleted: %w", r.Reference, err)
		}
	}
	return nil
}

// removeImage has an agent delete an image. answered says whether the agent said anything, be it no.
func (s *Service) removeImage(ctx context.Context, r dbgen.DueImageRemovalsRow) (answered bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, removalPatience)
	defer cancel()
	// The names of this body are those of wire/node.ImageRemoval.
	body, err := json.Marshal(map[string]string{"reference": r.Reference, "id": r.Digest})
	if err != nil {
		return true, fmt.Errorf("encode removal: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent"+removalPath, bytes.NewReader(body))
	if err != nil {
		return true, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.d.Streams.RoundTrip(cluster.AgentID(r.AgentID), req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNoContent {
		return true, nil
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // a reply that broke off is shown as far as it came
	return err == nil, fault.Unavailablef("the agent answers %s: %s", resp.Status, text)
}
