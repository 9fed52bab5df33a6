package mount

import "context"

// Unseen says why a container engine would not find a mount of the agent's at a path; "" when it would. engine returns a process in
// the engine's mount namespace, 0 when it is unknown.
func Unseen(ctx context.Context, engine func(ctx context.Context) (pid int, err error), path string) string {
	return (&Mounts{o: Options{Engine: engine}}).unseen(ctx, path)
}
