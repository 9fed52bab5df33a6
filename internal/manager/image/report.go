package image

import (
	"context"
	"fmt"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// aliasProject is the project of our own images: the first image of a name gets that name as its alias.
const aliasProject = "berth"

// Report stores an image that an agent has and returns its id; "" when the reference cannot be one.
func Report(ctx context.Context, tx *store.Tx, ids func() string, i cluster.NodeImage) (string, error) {
	if i.Reference == "" || len(i.Reference) > 512 || store.Text(i.Reference) != i.Reference {
		return "", nil
	}
	registry, project, name, tag := splitReference(i.Reference)
	labels := map[string]string{}
	for k, v := range i.Labels {
		labels[store.Text(k)] = store.Text(v)
	}
	row, err := tx.UpsertImage(ctx, dbgen.UpsertImageParams{ID: ids(), Reference: i.Reference, Registry: registry, Project: project,
		Name: name,
		Tag:  tag, Architecture: i.Architecture, Digest: i.Digest, SizeBytes: i.SizeBytes, Labels: labels})
	if err != nil {
		return "", fmt.Errorf("store image %s: %w", i.Reference, err)
	}
	if row.Added && registry == "local" && project == aliasProject {
		if err := tx.SeedAlias(ctx, name, row.ID); err != nil {
			return "", fmt.Errorf("name image %s: %w", i.Reference, err)
		}
	}
	return row.ID, nil
}

// splitReference takes a reference apart: "registry/project/name:tag". A first part with a dot, a colon or "localhost" is
// a registry; without one the image is local to the engines that have it.
func splitReference(ref string) (registry, project, name, tag string) {
	registry, tag = "local", "latest"
	rest := ref
	if first, after, ok := strings.Cut(ref, "/"); ok && (strings.ContainsAny(first, ".:") || first == "localhost") {
		registry, rest = first, after
	}
	if i := strings.LastIndexByte(rest, ':'); i >= 0 {
		rest, tag = rest[:i], rest[i+1:]
	}
	if i := strings.LastIndexByte(rest, '/'); i >= 0 {
		return registry, rest[:i], rest[i+1:], tag
	}
	return registry, "", rest, tag
}
