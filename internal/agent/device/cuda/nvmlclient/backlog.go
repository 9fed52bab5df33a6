package nvmlclient

import (
	"context"
	"slices"
	"sync"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
)

// The bounds of events that nobody has taken.
const (
	maxOfCard = 16
	maxEvents = maxOfCard * nvmlwire.MaxGPUs
)

// backlog is a queue of events. Of each card it keeps the oldest: the first error is the cause of those that follow.
type backlog struct {
	mu   sync.Mutex
	list []nvmlwire.Event
	lost map[string]bool // cards of which some were left out since their last was taken
	wake chan struct{}
}

func newBacklog() *backlog { return &backlog{lost: map[string]bool{}, wake: make(chan struct{}, 1)} }

// add takes an event, or leaves it out. It reports the first one of a card that it leaves out.
func (b *backlog) add(e nvmlwire.Event) (lost bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := 0
	for _, old := range b.list {
		if old.UUID == e.UUID {
			of++
		}
	}
	if of >= maxOfCard || len(b.list) >= maxEvents {
		lost = !b.lost[e.UUID] && len(b.lost) < nvmlwire.MaxGPUs
		if lost {
			b.lost[e.UUID] = true
		}
		return lost
	}
	if of == 0 {
		delete(b.lost, e.UUID)
	}
	b.list = append(b.list, e)
	select {
	case b.wake <- struct{}{}:
	default:
	}
	return false
}

// forward hands the events out in their order until ctx ends. One that is being handed out counts no more.
func (b *backlog) forward(ctx context.Context, to chan<- nvmlwire.Event) {
	for {
		b.mu.Lock()
		var head *nvmlwire.Event
		if len(b.list) > 0 {
			head = new(b.list[0])
			b.list = slices.Delete(b.list, 0, 1)
		}
		b.mu.Unlock()
		if head == nil {
			select {
			case <-b.wake:
			case <-ctx.Done():
				return
			}
			continue
		}
		select {
		case to <- *head:
		case <-ctx.Done():
			return
		}
	}
}
