package image

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Bounds of what agents report of an image.
const (
	maxReference = 512
	maxDigest    = 256
	maxArch      = 64
)

// Report stores which images an agent has. It changes nothing of the catalogue: an agent offers an image of the catalogue when it
// has the reference with the catalogue's digest.
func Report(ctx context.Context, tx *store.Tx, agent cluster.AgentID, images []cluster.NodeImage) error {
	p := dbgen.SetAgentImagesParams{AgentID: string(agent), Refs: []string{}, Architectures: []string{}, Digests: []string{}, Sizes: []int64{}}
	seen := map[string]bool{}
	for _, i := range images {
		if seen[i.Reference] || !isName(i.Reference, maxReference) || !isName(i.Digest, maxDigest) || !isName(i.Architecture, maxArch) {
			continue
		}
		seen[i.Reference] = true
		p.Refs, p.Architectures = append(p.Refs, i.Reference), append(p.Architectures, i.Architecture)
		p.Digests, p.Sizes = append(p.Digests, i.Digest), append(p.Sizes, max(i.SizeBytes, 0))
	}
	if err := tx.SetAgentImages(ctx, p); err != nil {
		return fmt.Errorf("store the images of agent %s: %w", agent, err)
	}
	return nil
}

func isName(text string, limit int) bool {
	return text != "" && len(text) <= limit && store.Text(text) == text
}
