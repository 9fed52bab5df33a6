package service

import "context"

// FlushAccesses writes what was gathered, without waiting for the next time.
func FlushAccesses(ctx context.Context, s *Service) error {
	return s.accesses.Flush(ctx, s.d.Store, s.d.Clock())
}
