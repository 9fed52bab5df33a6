package httpapi

import (
	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/image"
)

// imageRoutes are our extensions for those who keep the catalogue of images.
func (a *API) imageRoutes() {
	a.handle(signedOnly, a.unknownImages, "GET /resource/images/unknown")
	a.handle(signedOnly, a.importImage, "POST /resource/images/import")
}

func (a *API) unknownImages(c *call) error {
	list, err := a.images.Unknown(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	out := api.UnknownImages{Images: make([]api.UnknownImage, len(list))}
	for i, u := range list {
		out.Images[i] = api.UnknownImage{Agent: string(u.Agent), Reference: u.Reference, Architecture: u.Architecture, Digest: u.Digest,
			SizeBytes: u.SizeBytes, CatalogueDigest: u.CatalogueDigest}
	}
	return c.ok(out)
}

func (a *API) importImage(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	r := image.Import{Reference: p.Need("reference"), Agent: cluster.AgentID(p.Need("agent")), Digest: p.Text("digest", ""),
		Project: cluster.ProjectID(p.Text("project", ""))}
	if err := p.Err(); err != nil {
		return err
	}
	i, err := a.images.Import(c.ctx(), c.actor, r)
	if err != nil {
		return err
	}
	return c.ok(api.ImportedImage{ID: string(i.ID), Reference: i.Reference, Digest: i.Digest, Scope: string(i.Scope)})
}
