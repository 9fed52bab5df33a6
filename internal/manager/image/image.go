package image

import (
	"context"
	"fmt"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
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
	Agents   []cluster.AgentID // that have it with this digest
	Scope    Scope
	// Owner is the user who made it of a session; "" of images that were imported.
	Owner cluster.UserID
	// OfProject is the project whose members may use it, in ScopeProject.
	OfProject cluster.ProjectID
}

// Scope says for whom an image is.
type Scope string

// The scopes.
const (
	ScopeUser    Scope = "user"    // for its owner
	ScopeProject Scope = "project" // for the members of a project
	ScopeGlobal  Scope = "global"  // for everybody
)

// objectOf are the facts of an image that rules look at.
func objectOf(i dbgen.Image, ownerRole, domain string) authz.Object {
	o := authz.Object{Name: i.Reference, Registry: i.Registry, Public: Scope(i.Scope) == ScopeGlobal, OwnerRole: authz.Role(ownerRole),
		Domain: domain}
	if i.OwnerID != nil {
		o.Owner = cluster.UserID(*i.OwnerID)
	}
	if i.ProjectID != nil {
		o.Project = cluster.ProjectID(*i.ProjectID)
	}
	return o
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
	rows, err := s.d.Store.FindImages(ctx, ref)
	if err != nil {
		return dbgen.Image{}, fmt.Errorf("find image %q: %w", ref, err)
	}
	return Choose(a, rows, ref, architecture)
}

// Choose picks the first image of an architecture ("" is any) among those that a reference may mean and that the actor may see.
func Choose(a authz.Actor, found []dbgen.FindImagesRow, ref, architecture string) (dbgen.Image, error) {
	var rows []dbgen.Image
	for _, r := range found {
		if authz.Images.May(a, authz.See, objectOf(r.Image, r.OwnerRole, r.OwnerDomain)) {
			rows = append(rows, r.Image)
		}
	}
	for _, r := range rows {
		if architecture == "" || r.Architecture == architecture {
			return r, nil
		}
	}
	if len(rows) > 0 {
		e := fault.NotFoundf("image %s is not there for architecture %.64s, only for %s", ref, architecture, rows[0].Architecture)
		return dbgen.Image{}, e.WithData(map[string]string{"object": noun}).
			WithNext("ask for architecture %s", rows[0].Architecture)
	}
	return dbgen.Image{}, NotFound(ref)
}

// Runnable refuses images that a session's owner may not use: those of other users and projects, and those whose registry the
// owner's domain does not allow. Whoever asks may see the image.
func Runnable(owner authz.Actor, i dbgen.Image) error {
	o := objectOf(i, "", "")
	if authz.Images.May(owner, authz.Use, o) {
		return nil
	}
	if o.Registry = authz.LocalRegistry; !authz.Images.May(owner, authz.Use, o) {
		return fault.Deniedf("image %s is not for %s: it belongs to another user or project", i.Reference, owner.Email).
			WithNext("choose another image, or start the session for the image's owner")
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
	return fault.NotFoundf("No such image reference: %.512s", ref).
		WithData(map[string]string{"object": noun}).WithNext("berth image list shows what there is; make images builds the standard ones")
}

func imageView(i dbgen.Image) *Image {
	v := &Image{
		ID: cluster.ImageID(i.ID), Reference: i.Reference, Registry: i.Registry, RegistryType: i.RegistryType, Project: i.Project, Name: i.Name,
		Tag:          i.Tag,
		Architecture: i.Architecture, Digest: i.Digest, SizeBytes: i.SizeBytes, Labels: i.Labels, Aliases: []string{}, Status: i.Status,
		CreatedAt: i.CreatedAt.UTC(), LastUsedAt: store.UTC(i.LastUsedAt), Agents: []cluster.AgentID{}, Scope: Scope(i.Scope),
	}
	if i.OwnerID != nil {
		v.Owner = cluster.UserID(*i.OwnerID)
	}
	if i.ProjectID != nil {
		v.OfProject = cluster.ProjectID(*i.ProjectID)
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

// Named are the alive images of exact references that the actor may see, the newest first: those of all architectures.
func (s *Service) Named(ctx context.Context, a authz.Actor, refs []string) (map[string][]*Image, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	found, err := s.d.Store.ImagesNamed(ctx, refs)
	if err != nil {
		return nil, fmt.Errorf("find images: %w", err)
	}
	var rows []dbgen.Image
	for _, r := range found {
		if authz.Images.May(a, authz.See, objectOf(r.Image, r.OwnerRole, r.OwnerDomain)) {
			rows = append(rows, r.Image)
		}
	}
	views, err := s.imageViews(ctx, rows)
	if err != nil {
		return nil, err
	}
	out := map[string][]*Image{}
	for _, v := range views {
		out[v.Reference] = append(out[v.Reference], v)
	}
	return out, nil
}

func (s *Service) findImage(ctx context.Context, a authz.Actor, ref, architecture string) (dbgen.Image, error) {
	id, ok := cluster.CanonicalUUID(ref)
	if !ok {
		return s.Resolve(ctx, a, ref, architecture)
	}
	row, err := s.d.Store.ImageByID(ctx, id)
	if store.Missing(err) {
		return dbgen.Image{}, NotFound(ref)
	}
	if err != nil {
		return dbgen.Image{}, fmt.Errorf("find image %s: %w", ref, err)
	}
	if !authz.Images.May(a, authz.See, objectOf(row.Image, row.OwnerRole, row.OwnerDomain)) {
		return dbgen.Image{}, NotFound(ref)
	}
	return row.Image, nil
}

// Alias makes or moves an alias of an image that is for everybody (superadmins). Aliases are one name space, so other images get none.
func (s *Service) Alias(ctx context.Context, a authz.Actor, alias, target, architecture string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "image.alias", alias)
	defer end(&err)
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
	if Scope(row.Scope) != ScopeGlobal {
		return fault.Invalidf("image %s is not for everybody, an alias would be", row.Reference).WithNext("use its reference")
	}
	if err := s.d.Store.SetAlias(ctx, alias, row.ID); err != nil {
		return fmt.Errorf("store alias %s: %w", alias, err)
	}
	return nil
}

// Dealias removes an alias (superadmins).
func (s *Service) Dealias(ctx context.Context, a authz.Actor, alias string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "image.dealias", alias)
	defer end(&err)
	if err := authz.Images.Need(a, authz.Administer, authz.Object{}, "name images"); err != nil {
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

// Forget hides an image from new sessions: an owner one that was made of a session, a superadmin any. One that was made of a session
// is deleted where it lies. One that was imported by itself comes back when its content changes.
func (s *Service) Forget(ctx context.Context, a authz.Actor, ref, architecture string) (_ *Image, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "image.forget", ref)
	defer end(&err)
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	row, err := s.findImage(ctx, a, ref, architecture)
	if err != nil {
		return nil, err
	}
	facts, err := s.d.Store.ImageByID(ctx, row.ID)
	if err != nil {
		return nil, fmt.Errorf("find image %s: %w", ref, err)
	}
	if err := authz.Images.Check(a, authz.Change, objectOf(facts.Image, facts.OwnerRole, facts.OwnerDomain)); err != nil {
		return nil, err
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.RemoveOldCommit(ctx, row.Reference, row.Architecture, ""); err != nil {
			return err
		}
		return tx.ForgetImage(ctx, row.ID)
	})
	if err != nil {
		return nil, fmt.Errorf("forget image %s: %w", ref, err)
	}
	s.d.Store.Wake(store.TopicImages)
	v, err := s.imageViews(ctx, []dbgen.Image{row})
	if err != nil {
		return nil, err
	}
	v[0].Status = "DELETED"
	return v[0], nil
}
