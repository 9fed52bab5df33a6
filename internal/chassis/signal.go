package chassis

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// SignalContext returns a context that ends at the first SIGINT or SIGTERM; its cause names
// the signal. A second signal has its default effect, so an impatient operator is obeyed.
// Call stop to release the handler.
func SignalContext(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case s := <-ch:
			signal.Stop(ch)
			cancel(fmt.Errorf("received %s", s))
		case <-ctx.Done():
			signal.Stop(ch)
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
	}
}
