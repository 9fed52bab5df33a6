package operation

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Task is background work that somebody may watch.
type Task struct {
	ID             string
	Kind           string
	Subject        string
	Status         string // started, done, cancelled, failed
	Message        string
	Current, Total int64
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

const (
	taskNoun = "background task"
	taskBeat = 20 * time.Second
)

func taskTopic(id string) string { return "task:" + id }

// Task returns one of the actor's tasks.
func (s *Service) Task(ctx context.Context, a authz.Actor, id string) (Task, error) {
	if err := authz.Authenticated(a); err != nil {
		return Task{}, err
	}
	uuid, ok := cluster.CanonicalUUID(id)
	if !ok {
		return Task{}, authz.NotFound(taskNoun, id)
	}
	r, err := s.d.Store.GetTask(ctx, uuid)
	if store.Missing(err) {
		return Task{}, authz.NotFound(taskNoun, id)
	}
	if err != nil {
		return Task{}, fmt.Errorf("read task %s: %w", id, err)
	}
	o := authz.Object{Name: id}
	if r.Owner != nil {
		o.Owner = cluster.UserID(*r.Owner)
	}
	return Task{ID: r.ID, Kind: r.Kind, Subject: r.Subject, Status: r.Status, Message: r.Message, Current: r.Current, Total: r.Total,
		CreatedAt: r.CreatedAt.UTC(), UpdatedAt: r.UpdatedAt.UTC()}, authz.Tasks.Check(a, authz.See, o)
}

// TaskEvents streams states of a task, the final one last, then closes the channel.
func (s *Service) TaskEvents(ctx context.Context, a authz.Actor, id string) (<-chan Task, error) {
	t, err := s.Task(ctx, a, id)
	if err != nil {
		return nil, err
	}
	topic := taskTopic(t.ID)
	wakes := s.d.Store.Wakes(func(x string) bool { return x == topic })
	out := make(chan Task)
	go func() {
		defer close(out)
		defer wakes.Close()
		tick := time.NewTicker(maxWait)
		defer tick.Stop()
		var last Task
		for {
			if t, err := s.Task(ctx, a, id); err == nil && t != last {
				last = t
				select {
				case out <- t:
				case <-ctx.Done():
					return
				}
				if t.Status != "started" {
					return
				}
			}
			select {
			case <-wakes.C:
				wakes.Take()
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// StartTask runs work as a task of the actor; report says how far it is. It begins only if may, which runs in the transaction that
// notes the task, returns nil; may can be nil.
func (s *Service) StartTask(ctx context.Context, a authz.Actor, kind, subject string, may func(ctx context.Context, tx *store.Tx) error,
	work func(ctx context.Context, report func(message string)) (string, error)) (id string, err error) {
	if err := authz.Authenticated(a); err != nil {
		return "", err
	}
	id = s.d.IDs()
	owner := string(a.UserID)
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if may != nil {
			if err := may(ctx, tx); err != nil {
				return err
			}
		}
		if err := tx.AddTask(ctx, dbgen.AddTaskParams{ID: id, Kind: kind, Owner: &owner, Subject: subject, Message: ""}); err != nil {
			return fmt.Errorf("note task: %w", err)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	set := func(ctx context.Context, status, message string, current int64) {
		// The end is written even when the manager is stopping.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := s.d.Store.SetTask(ctx, dbgen.SetTaskParams{ID: id, Status: status, Message: store.Text(message), Current: current,
			Total: 1}); err != nil {
			s.d.Log.Warn("could not note the state of a task", "task", id, "error", err)
		}
		s.d.Store.Wake(taskTopic(id))
	}
	err = s.work.start(func(ctx context.Context) {
		// Other managers take a task for abandoned that says nothing for a minute.
		beat := time.NewTicker(taskBeat)
		defer beat.Stop()
		var last atomic.Value
		last.Store("")
		ended := make(chan struct{})
		var beating sync.WaitGroup
		beating.Go(func() {
			for {
				select {
				case <-beat.C:
					set(ctx, "started", last.Load().(string), 0)
				case <-ended:
					return
				}
			}
		})
		message, err := work(ctx, func(m string) {
			last.Store(m)
			set(ctx, "started", m, 0)
		})
		close(ended)
		beating.Wait()
		if err != nil {
			s.d.Log.Warn("task failed", "task", id, "kind", kind, "subject", subject, "error", err)
			set(ctx, "failed", err.Error(), 0)
			return
		}
		set(ctx, "done", message, 1)
	})
	if err != nil {
		set(ctx, "failed", err.Error(), 0)
		return "", err
	}
	return id, nil
}
