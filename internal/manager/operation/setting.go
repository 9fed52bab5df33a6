package operation

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
)

const (
	settingAnnouncement = "announcement"
	settingStatus       = "manager-status"

	statusRunning = "running"
	statusFrozen  = "frozen"

	maxAnnouncement = 16 << 10
	// frozenMemory is how long an answer of Frozen is believed.
	frozenMemory = time.Second
)

type announcement struct {
	Enabled bool   `json:"enabled"`
	Message string `json:"message"`
}

// setting reads a setting into v and leaves v alone when it was never set.
func (s *Service) setting(ctx context.Context, key string, v any) error {
	raw, err := s.d.Store.GetSetting(ctx, key)
	if store.Missing(err) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil {
		return fmt.Errorf("read setting %s: %w", key, err)
	}
	return nil
}

func (s *Service) setSetting(ctx context.Context, key string, v any) error {
	raw, err := json.Marshal(v)
	if err == nil {
		err = s.d.Store.SetSetting(ctx, key, raw)
	}
	if err != nil {
		return fmt.Errorf("store setting %s: %w", key, err)
	}
	return nil
}

// Announcement is shown to everybody (public).
func (s *Service) Announcement(ctx context.Context) (enabled bool, message string, err error) {
	var a announcement
	if err := s.setting(ctx, settingAnnouncement, &a); err != nil {
		return false, "", err
	}
	if !a.Enabled {
		return false, "", nil
	}
	return true, a.Message, nil
}

// SetAnnouncement shows or hides an announcement (superadmins); message nil keeps the text.
func (s *Service) SetAnnouncement(ctx context.Context, a authz.Actor, enabled bool, message *string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "cluster.announce", "")
	defer end(&err)
	if err := authz.Announcements.Need(a, authz.Administer, authz.Object{}, "announce"); err != nil {
		return err
	}
	var now announcement
	if err := s.setting(ctx, settingAnnouncement, &now); err != nil {
		return err
	}
	now.Enabled = enabled
	if message != nil {
		now.Message = *message
	}
	if len(now.Message) > maxAnnouncement || store.Text(now.Message) != now.Message {
		return fault.Invalidf("an announcement is text of %d bytes at most", maxAnnouncement)
	}
	if enabled && now.Message == "" {
		return fault.Invalidf("an announcement needs a message")
	}
	return s.setSetting(ctx, settingAnnouncement, now)
}

// ManagerStatus is "running" or "frozen" with the number of live sessions: of all for administrators of the cluster, of their own for
// others.
type ManagerStatus struct {
	Status         string
	ActiveSessions int
}

// ManagerStatus tells everybody who is known.
func (s *Service) ManagerStatus(ctx context.Context, a authz.Actor) (ManagerStatus, error) {
	if err := authz.Authenticated(a); err != nil {
		return ManagerStatus{}, err
	}
	out := ManagerStatus{Status: statusRunning}
	if err := s.setting(ctx, settingStatus, &out.Status); err != nil {
		return out, err
	}
	count := s.d.Store.CountLiveSessions
	if !authz.Cluster.May(a, authz.Administer, authz.Object{}) {
		count = func(ctx context.Context) (int64, error) { return s.d.Store.CountLiveSessionsOf(ctx, string(a.UserID)) }
	}
	n, err := count(ctx)
	if err != nil {
		return out, fmt.Errorf("count sessions: %w", err)
	}
	out.ActiveSessions = int(n)
	return out, nil
}

// frozenCache remembers an answer for a moment, because every change asks.
type frozenCache struct {
	mu     sync.Mutex
	frozen bool
	until  time.Time
}

// Frozen reports whether changes are refused (public; believed for a second).
func (s *Service) Frozen(ctx context.Context) (bool, error) {
	s.frozen.mu.Lock()
	defer s.frozen.mu.Unlock()
	now := s.d.Clock()
	if now.Before(s.frozen.until) {
		return s.frozen.frozen, nil
	}
	status := statusRunning
	if err := s.setting(ctx, settingStatus, &status); err != nil {
		return false, err
	}
	s.frozen.frozen, s.frozen.until = status == statusFrozen, now.Add(frozenMemory)
	return s.frozen.frozen, nil
}

// SetManagerStatus freezes or thaws the cluster (superadmins).
func (s *Service) SetManagerStatus(ctx context.Context, a authz.Actor, status string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "cluster.set-status", status)
	defer end(&err)
	if err := authz.Cluster.Need(a, authz.Administer, authz.Object{}, "freeze the cluster"); err != nil {
		return err
	}
	if status != statusRunning && status != statusFrozen {
		return fault.Invalidf("%q is not a status", status).WithNext("use running or frozen")
	}
	if err := s.setSetting(ctx, settingStatus, status); err != nil {
		return err
	}
	s.frozen.mu.Lock()
	defer s.frozen.mu.Unlock()
	s.frozen.until = time.Time{}
	return nil
}
