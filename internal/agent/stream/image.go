package stream

import (
	"encoding/json"
	"net/http"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/run"
)

// image describes one image of the host.
func (h *handler) image(w http.ResponseWriter, r *http.Request) {
	reference := r.URL.Query().Get("reference")
	img, err := h.o.Runtime.Image(r.Context(), reference)
	if err != nil {
		run.WriteFailure(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(node.ImageDetails{Reference: reference, ID: img.ID, Architecture: img.Architecture,
		SizeBytes: img.SizeBytes, Labels: img.Labels}) // a caller that left needs no answer
}

// removeImage deletes an image that was made of a session, and no other one.
func (h *handler) removeImage(w http.ResponseWriter, r *http.Request) {
	var req node.ImageRemoval
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	if err := d.Decode(&req); err != nil || req.Reference == "" || req.ID == "" {
		run.WriteFailure(w, fault.Invalidf("a removal needs a JSON body with a reference and an id").WithCause(err))
		return
	}
	img, err := h.o.Runtime.Image(r.Context(), req.ID)
	if err == nil && img.Labels[cluster.LabelCustomizedOwner] == "" {
		err = fault.Deniedf("image %s was not made of a session", req.Reference)
	}
	if err == nil {
		err = h.o.Runtime.RemoveImage(r.Context(), req.Reference, req.ID)
	}
	if err != nil && !fault.Is(err, fault.NotFound) {
		run.WriteFailure(w, err)
		return
	}
	if h.o.OnCommit != nil {
		h.o.OnCommit()
	}
	w.WriteHeader(http.StatusNoContent)
}
