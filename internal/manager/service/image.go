package service

import (
	"context"
	"fmt"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/service/request"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Image is an image that sessions may run.
type Image struct {
	ID           cluster.ImageID
	Reference    string
	Registry     string
	RegistryType string
	Project      string
	Name         string // without registry and tag
	Tag          string
	Architecture string
	Digest       string
	SizeBytes    int64
	Labels       map[string]string
	Aliases      []string
	Status       string
	CreatedAt    time.Time
	LastUsedAt   *time.Time
	// Min and Max are per kernel; absent means no bound.
	Min, Max cluster.Slots
	Agents   []cluster.AgentID // that have it
}

// imageNoun is the wire's word in errors.
const imageNoun = "image reference"

// resolveImage finds the alive image that a text means among those that the actor may see: the exact reference, an alias, or
// the newest image of a name without tag. Architecture "" means any.
func (s *Service) resolveImage(ctx context.Context, a Actor, ref, architecture string) (dbgen.Image, error) {
	if !mayBeImage(ref) {
		return dbgen.Image{}, noImage(ref)
	}
	rows, err := s.d.Store.FindImages(ctx, ref)
	if err != nil {
		return dbgen.Image{}, fmt.Errorf("find image %q: %w", ref, err)
	}
	return chooseImage(visible(a, rows), ref, architecture)
}

// visible leaves out the images that the actor may not see.
func visible(a Actor, rows []dbgen.FindImagesRow) []dbgen.FindImagesRow {
	var out []dbgen.FindImagesRow
	for _, r := range rows {
		if authz.Images.May(a, authz.See, authz.Object{Registry: r.Registry}) {
			out = append(out, r)
		}
	}
	return out
}

// runnable refuses images whose registry the domain of a session's owner does not allow.
func runnable(owner Actor, i dbgen.Image) error {
	if authz.Images.May(owner, authz.Use, authz.Object{Registry: i.Registry}) {
		return nil
	}
	return fault.Deniedf("domain %s does not allow images of registry %s, such as %s", owner.Domain, i.Registry, i.Reference).WithReason("generic-forbidden").
		WithNext("ask a superadmin to add the registry to the domain's allowed_docker_registries, or choose another image")
}

func chooseImage(rows []dbgen.FindImagesRow, ref, architecture string) (dbgen.Image, error) {
	for _, r := range rows {
		if architecture == "" || r.Architecture == architecture {
			return dbgen.Image{ID: r.ID, Reference: r.Reference, Registry: r.Registry, RegistryType: r.RegistryType, Project: r.Project, Name: r.Name,
				Tag: r.Tag, Architecture: r.Architecture, Digest: r.Digest, SizeBytes: r.SizeBytes, Labels: r.Labels, Resources: r.Resources,
				Status: r.Status, CreatedAt: r.CreatedAt, LastUsedAt: r.LastUsedAt}, nil
		}
	}
	if len(rows) > 0 {
		e := fault.NotFoundf("image %s is not there for architecture %s, only for %s", ref, architecture, rows[0].Architecture)
		return dbgen.Image{}, e.WithReason("object-not-found").WithData(map[string]string{"object": imageNoun}).
			WithNext("ask for architecture %s", rows[0].Architecture)
	}
	return dbgen.Image{}, noImage(ref)
}

func mayBeImage(ref string) bool {
	return ref != "" && len(ref) <= 512 && !strings.ContainsAny(ref, "\x00\n ")
}

func noImage(ref string) error {
	return fault.NotFoundf("No such image reference: %s", ref).WithReason("object-not-found").
		WithData(map[string]string{"object": imageNoun}).WithNext("berth image list shows what there is; make images builds the standard ones")
}

func imageView(i dbgen.Image) *Image {
	v := &Image{
		ID: cluster.ImageID(i.ID), Reference: i.Reference, Registry: i.Registry, RegistryType: i.RegistryType, Project: i.Project, Name: i.Name, Tag: i.Tag,
		Architecture: i.Architecture, Digest: i.Digest, SizeBytes: i.SizeBytes, Labels: i.Labels, Aliases: []string{}, Status: i.Status,
		CreatedAt: i.CreatedAt.UTC(), LastUsedAt: utc(i.LastUsedAt), Agents: []cluster.AgentID{},
	}
	v.Min, v.Max = request.Bounds(i, nil)
	return v
}

func (s *Service) imageViews(ctx context.Context, rows []dbgen.Image) ([]*Image, error) {
	out := make([]*Image, len(rows))
	byID := map[string]*Image{}
	ids := make([]string, len(rows))
	for i, r := range rows {
		out[i] = imageView(r)
		byID[r.ID], ids[i] = out[i], r.ID
	}
	aliases, err := s.d.Store.AliasesOf(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read aliases: %w", err)
	}
	for _, x := range aliases {
		byID[x.ImageID].Aliases = append(byID[x.ImageID].Aliases, x.Alias)
	}
	agents, err := s.d.Store.AgentsOf(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read where images are: %w", err)
	}
	for _, x := range agents {
		byID[x.ImageID].Agents = append(byID[x.ImageID].Agents, cluster.AgentID(x.AgentID))
	}
	return out, nil
}

// GetImage finds an image by id, reference or alias; architecture "" means any.
func (s *Service) GetImage(ctx context.Context, a Actor, ref, architecture string) (*Image, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	row, err := s.findImage(ctx, a, ref, architecture)
	if err != nil {
		return nil, err
	}
	v, err := s.imageViews(ctx, []dbgen.Image{row})
	if err != nil {
		return nil, err
	}
	return v[0], nil
}

func (s *Service) findImage(ctx context.Context, a Actor, ref, architecture string) (dbgen.Image, error) {
	id, ok := cluster.CanonicalUUID(ref)
	if !ok {
		return s.resolveImage(ctx, a, ref, architecture)
	}
	row, err := s.d.Store.ImageByID(ctx, id)
	if store.Missing(err) {
		return row, noImage(ref)
	}
	if err != nil {
		return row, fmt.Errorf("find image %s: %w", ref, err)
	}
	if !authz.Images.May(a, authz.See, authz.Object{Registry: row.Registry}) {
		return row, noImage(ref)
	}
	return row, nil
}

// AliasImage makes or moves an alias (superadmins).
func (s *Service) AliasImage(ctx context.Context, a Actor, alias, target, architecture string) error {
	if err := authz.NeedSuperadmin(a, "name images"); err != nil {
		return err
	}
	if len(alias) == 0 || len(alias) > 255 || strings.ContainsFunc(alias, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return fault.Invalidf("%q cannot be an alias", alias).WithReason("invalid-api-params").WithNext("use 1 to 255 characters without spaces")
	}
	row, err := s.findImage(ctx, a, target, architecture)
	if err != nil {
		return err
	}
	if err := s.d.Store.SetAlias(ctx, alias, row.ID); err != nil {
		return fmt.Errorf("store alias %s: %w", alias, err)
	}
	return nil
}

// DealiasImage removes an alias (superadmins).
func (s *Service) DealiasImage(ctx context.Context, a Actor, alias string) error {
	if err := authz.NeedSuperadmin(a, "name images"); err != nil {
		return err
	}
	n, err := s.d.Store.DropAlias(ctx, alias)
	if err != nil {
		return fmt.Errorf("remove alias %s: %w", alias, err)
	}
	if n == 0 {
		return authz.NotFound("image alias", alias)
	}
	return nil
}

// ForgetImage hides an image from new sessions until an agent reports it with another content (superadmins).
func (s *Service) ForgetImage(ctx context.Context, a Actor, ref, architecture string) (*Image, error) {
	if err := authz.NeedSuperadmin(a, "forget images"); err != nil {
		return nil, err
	}
	row, err := s.findImage(ctx, a, ref, architecture)
	if err != nil {
		return nil, err
	}
	if err := s.d.Store.ForgetImage(ctx, row.ID); err != nil {
		return nil, fmt.Errorf("forget image %s: %w", ref, err)
	}
	v, err := s.imageViews(ctx, []dbgen.Image{row})
	if err != nil {
		return nil, err
	}
	v[0].Status = "DELETED"
	return v[0], nil
}

// parseServicePorts reads the label that declares apps.
func parseServicePorts(label string) []ServicePort {
	out := []ServicePort{}
	for _, p := range cluster.ParseServicePorts(label) {
		out = append(out, ServicePort{Name: p.Name, Protocol: p.Protocol, Ports: p.Ports})
	}
	return out
}
