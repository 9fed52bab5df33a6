package folder

import (
	"context"
	"time"

	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store"
)

const (
	// loopSoon is the time between looks while a storage proxy has something to do, loopCalm that without hints otherwise.
	loopSoon = time.Second
	loopCalm = 30 * time.Second
)

// Loops returns the control loops of folders: storage proxies do what folders' rows say, and sessions lose the folders to which their
// owners lost the right.
func (s *Service) Loops() []reconcile.Loop {
	return []reconcile.Loop{s.withholdLoop(), {
		Name:  "folder",
		Hears: func(topic string) bool { return topic == store.TopicFolders },
		Begin: func(t reconcile.Term) reconcile.Work {
			l := s.NewLoop(t.Commit)
			return reconcile.Work{Pass: func(ctx context.Context) (time.Duration, error) {
				live, err := l.Pass(ctx)
				if live {
					return loopSoon, err
				}
				return loopCalm, err
			}}
		},
	}}
}
