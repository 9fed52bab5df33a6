package service

import (
	"log/slog"

	"berth.dev/berth/internal/manager/store"
)

type hub struct {
	store *store.Store
	log   *slog.Logger
}

func newHub(s *store.Store, log *slog.Logger) *hub { return &hub{store: s, log: log} }
