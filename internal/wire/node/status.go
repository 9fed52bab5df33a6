package node

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth.dev/berth/internal/fault"
)

// FaultOf turns the status that a manager answered with into a fault; other errors stay as they are.
func FaultOf(err error) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	kind := map[codes.Code]fault.Kind{
		codes.NotFound: fault.NotFound, codes.AlreadyExists: fault.Conflict, codes.FailedPrecondition: fault.Conflict,
		codes.Aborted:          fault.Conflict,
		codes.PermissionDenied: fault.Denied, codes.Unauthenticated: fault.Unauthenticated, codes.InvalidArgument: fault.Invalid,
		codes.ResourceExhausted: fault.Exhausted, codes.Unavailable: fault.Unavailable, codes.DeadlineExceeded: fault.Timeout,
	}[s.Code()]
	return fault.New(kind, "%s", s.Message())
}
