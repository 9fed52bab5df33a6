package reconcile

import (
	"context"
	"errors"
	"time"

	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/store"
)

const (
	// folderSoon is the time between looks while a storage proxy has something to do, folderCalm that without hints otherwise.
	folderSoon = time.Second
	folderCalm = 30 * time.Second
)

// Folders makes true what folders' rows say and only storage proxies can do; folder.Service satisfies it.
type Folders interface {
	NewLoop(commit folder.Commit) *folder.Loop
}

// foldering has storage proxies do what folders' rows say until ctx ends.
func (l *Loops) foldering(ctx context.Context, token int64) error {
	if l.deps.Folders == nil {
		<-ctx.Done()
		return nil
	}
	wakes := l.deps.Store.Wakes(func(topic string) bool { return topic == store.TopicFolders })
	defer wakes.Close()
	loop := l.deps.Folders.NewLoop(func(ctx context.Context, fn func(ctx context.Context, tx *store.Tx) error) error {
		return l.fenced(ctx, token, fn)
	})
	for {
		live, err := loop.Pass(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errDeposed):
			return err
		case err != nil:
			l.metrics.failures.WithLabelValues("folder").Inc()
			l.deps.Log.Error("bringing folders forward failed", "err", err)
		}
		wait := folderCalm
		if live || err != nil {
			wait = folderSoon
		}
		timer := l.deps.Clock.NewTimer(wait)
		select {
		case <-wakes.C:
			wakes.Take()
		case <-timer.C():
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}
