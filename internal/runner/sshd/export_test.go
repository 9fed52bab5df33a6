package sshd

import "time"

// LeaveWithin makes processes that serve files end sooner after their client.
func (s *Server) LeaveWithin(d time.Duration) { s.leave = d }
