package stream

import (
	"context"
	"io"
	"net/http"
	"time"

	"berth.dev/berth/internal/agent/runners"
	"berth.dev/berth/internal/wire/run"
)

// port carries bytes between the manager and a port inside a kernel, both ways at once.
func (h *handler) port(w http.ResponseWriter, r *http.Request) {
	k, ok := h.kernel(w, r)
	if !ok {
		return
	}
	n, err := runners.Port(r.PathValue("port"))
	if err == nil {
		err = k.Serving()
	}
	if err != nil {
		run.WriteFailure(w, err)
		return
	}
	conn, err := h.o.Runners.Connect(r.Context(), k.ID, k.Token, n)
	if err != nil {
		run.WriteFailure(w, err)
		return
	}
	control := http.NewResponseController(w)
	_ = control.EnableFullDuplex() // HTTP/2 always is
	w.WriteHeader(http.StatusOK)
	if err := control.Flush(); err != nil {
		_ = conn.Close()
		return
	}
	stop := context.AfterFunc(r.Context(), func() { _ = conn.Close() }) // the caller has left
	sent := make(chan struct{})
	go func() { // ends with the connection or the request, both of which end below
		defer close(sent)
		if _, err := io.Copy(conn, r.Body); err != nil {
			_ = conn.Close()
			return
		}
		if c, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = c.CloseWrite() // fails only when the app has left, which is seen below
		}
	}()
	_, err = io.Copy(flushing{w}, conn)
	stop()
	_ = conn.Close()
	// The server waits for a read of the body that is under way. End it, because nobody takes the bytes any more.
	_ = control.SetReadDeadline(time.Unix(1, 0))
	_ = r.Body.Close()
	<-sent
	if err != nil && r.Context().Err() == nil {
		h.o.Log.Debug("a connection to a port broke off", "kernel", k.ID, "port", n, "err", err)
		panic(http.ErrAbortHandler) // what was cut off must not look like an orderly end
	}
}
