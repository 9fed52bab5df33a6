package image

import (
	"context"
	"fmt"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
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

// Resolve finds the alive image that a text means among those that the actor may see: the exact reference, an alias, or the
// newest image of a name without tag. Architecture "" means any.
func (s *Service) Resolve(ctx context.Context, a authz.Actor, ref, architecture string) (dbgen.Image, error) {
	if err := authz.Authenticated(a); err != nil {
		return dbgen.Image{}, err
	}
	if !MayBeReference(ref) {
		return dbgen.Image{}, NotFound(ref)
	}
	rows, err := s.store.FindImages(ctx, ref)
	if err != nil {
		return dbgen.Image{}, fmt.Errorf("find image %q: %w", ref, err)
	}
	return Choose(a, rows, ref, architecture)
}

// Choose picks the first image of an architecture ("" is any) among those that a reference may mean and that the actor may see.
func Choose(a authz.Actor, found []dbgen.FindImagesRow, ref, architecture string) (dbgen.Image, error) {
	var rows []dbgen.FindImagesRow
	for _, r := range found {
		if authz.Images.May(a, authz.See, authz.Object{Registry: r.Registry}) {
			rows = append(rows, r)
		}
	}
	for _, r := range rows {
		if architecture == "" || r.Architecture == architecture {
			return dbgen.Image{ID: r.ID, Reference: r.Reference, Registry: r.Registry, RegistryType: r.RegistryType, Project: r.Project,
				Name: r.Name,
				Tag:  r.Tag, Architecture: r.Architecture, Digest: r.Digest, SizeBytes: r.SizeBytes, Labels: r.Labels, Resources: r.Resources,
				Status: r.Status, CreatedAt: r.CreatedAt, LastUsedAt: r.LastUsedAt}, nil
		}
	}
	if len(rows) > 0 {
		e := fault.NotFoundf("image %s is not there for architecture %s, only for %s", ref, architecture, rows[0].Architecture)
		return dbgen.Image{}, e.WithData(map[string]string{"object": noun}).
			WithNext("ask for architecture %s", rows[0].Architecture)
	}
	return dbgen.Image{}, NotFound(ref)
}

// Runnable refuses images whose registry the domain of a session's owner does not allow.
func Runnable(owner authz.Actor, i dbgen.Image) error {
	if authz.Images.May(owner, authz.Use, authz.Object{Registry: i.Registry}) {
		return nil
	}
	return fault.Deniedf("domain %s does not allow images of registry %s, such as %s", owner.Domain, i.Registry, i.Reference).
		WithNext("ask a superadmin to add the registry to the domain's allowed_docker_registries, or choose another image")
}

// MayBeReference reports whether a text may be a reference at all.
func MayBeReference(ref string) bool {
	return ref != "" && len(ref) <= 512 && !strings.ContainsAny(ref, "\x00\n ")
}

// NotFound reports an image that does not exist.
func NotFound(ref string) error {
	return fault.NotFoundf("No such image reference: %s", ref).
		WithData(map[string]string{"object": noun}).WithNext("berth image list shows what there is; make images builds the standard ones")
}

func imageView(i dbgen.Image) *Image {
	v := &Image{
		ID: cluster.ImageID(i.ID), Reference: i.Reference, Registry: i.Registry, RegistryType: i.RegistryType, Project: i.Project, Name: i.Name,
		Tag:          i.Tag,
		Architecture: i.Architecture, Digest: i.Digest, SizeBytes: i.SizeBytes, Labels: i.Labels, Aliases: []string{}, Status: i.Status,
		CreatedAt: i.CreatedAt.UTC(), LastUsedAt: store.UTC(i.LastUsedAt), Agents: []cluster.AgentID{},
	}
	v.Min, v.Max = Bounds(i, nil)
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
	aliases, err := s.store.AliasesOf(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read aliases: %w", err)
	}
	for _, x := range aliases {
		byID[x.ImageID].Aliases = append(byID[x.ImageID].Aliases, x.Alias)
	}
	agents, err := s.store.AgentsOf(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read where images are: %w", err)
	}
	for _, x := range agents {
		byID[x.ImageID].Agents = append(byID[x.ImageID].Agents, cluster.AgentID(x.AgentID))
	}
	return out, nil
}

// Get finds an image by id, reference or alias; architecture "" means any.
func (s *Service) Get(ctx context.Context, a authz.Actor, ref, architecture string) (*Image, error) {
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

func (s *Service) findImage(ctx context.Context, a authz.Actor, ref, architecture string) (dbgen.Image, error) {
	id, ok := cluster.CanonicalUUID(ref)
	if !ok {
		return s.Resolve(ctx, a, ref, architecture)
	}
	row, err := s.store.ImageByID(ctx, id)
	if store.Missing(err) {
		return row, NotFound(ref)
	}
	if err != nil {
		return row, fmt.Errorf("find image %s: %w", ref, err)
	}
	if !authz.Images.May(a, authz.See, authz.Object{Registry: row.Registry}) {
		return row, NotFound(ref)
	}
	return row, nil
}

// Alias makes or moves an alias (superadmins).
func (s *Service) Alias(ctx context.Context, a authz.Actor, alias, target, architecture string) error {
	if err := authz.Images.Need(a, authz.Administer, authz.Object{}, "name images"); err != nil {
		return err
	}
	if len(alias) == 0 || len(alias) > 255 || strings.ContainsFunc(alias, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return fault.Invalidf("%q cannot be an alias", alias).WithNext("use 1 to 255 characters without spaces")
	}
	row, err := s.findImage(ctx, a, target, architecture)
	if err != nil {
		return err
	}
	if err := s.store.SetAlias(ctx, alias, row.ID); err != nil {
		return fmt.Errorf("store alias %s: %w", alias, err)
	}
	return nil
}

// Dealias removes an alias (superadmins).
func (s *Service) Dealias(ctx context.Context, a authz.Actor, alias string) error {
	if err := authz.Images.Need(a, authz.Administer, authz.Object{}, "name images"); err != nil {
		return err
	}
	n, err := s.store.DropAlias(ctx, alias)
	if err != nil {
		return fmt.Errorf("remove alias %s: %w", alias, err)
	}
	if n == 0 {
		return authz.NotFound("image alias", alias)
	}
	return nil
}

// Forget hides an image from new sessions until an agent reports it with another content (superadmins).
func (s *Service) Forget(ctx context.Context, a authz.Actor, ref, architecture string) (*Image, error) {
	if err := authz.Images.Need(a, authz.Administer, authz.Object{}, "forget images"); err != nil {
		return nil, err
	}
	row, err := s.findImage(ctx, a, ref, architecture)
	if err != nil {
		return nil, err
	}
	if err := s.store.ForgetImage(ctx, row.ID); err != nil {
		return nil, fmt.Errorf("forget image %s: %w", ref, err)
	}
	v, err := s.imageViews(ctx, []dbgen.Image{row})
	if err != nil {
		return nil, err
	}
	v[0].Status = "DELETED"
	return v[0], nil
}
