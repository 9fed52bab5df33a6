package image

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

const (
	// aliasProject is the project of our own images: the first image of a name gets that name as its alias.
	aliasProject = "berth"

	// Labels of images that were made of sessions.
	labelOwner = cluster.LabelCustomizedOwner
	labelEmail = "ai.backend.customized-image.user.email"
	labelName  = "ai.backend.customized-image.name"
	labelID    = "ai.backend.customized-image.id"

	maxUnknown  = 1000
	maxLabels   = 1 << 20 // bytes of an agent's answer about one image
	detailsPath = "/images"
)

// Import asks for an image to be taken into the catalogue, as an agent has it.
type Import struct {
	Reference string
	// Agent is whom the administrator believes about the image: its digest and labels are taken from there.
	Agent cluster.AgentID
	// Digest, if it is set, is the only one that is taken.
	Digest string
	// Project is for whose members the image is, by id; "" is everybody.
	Project cluster.ProjectID
}

// Import takes an image into the catalogue, or renews it there (superadmins). This is how images of agents on other machines than
// the manager's own become usable: what agents report makes nothing usable by itself.
func (s *Service) Import(ctx context.Context, a authz.Actor, r Import) (_ *Image, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "image.import", r.Reference)
	defer end(&err)
	if err := authz.Images.Need(a, authz.Administer, authz.Object{}, "import images"); err != nil {
		return nil, err
	}
	if !MayBeReference(r.Reference) || r.Agent == "" {
		return nil, fault.Invalidf("an import needs the reference of an image and the agent that has it").
			WithNext("berth image unknown lists what agents have")
	}
	have, err := s.d.Store.AgentImage(ctx, string(r.Agent), r.Reference)
	switch {
	case store.Missing(err):
		return nil, NotFound(r.Reference)
	case err != nil:
		return nil, fmt.Errorf("look what agent %s has: %w", r.Agent, err)
	case r.Digest != "" && r.Digest != have.Digest:
		return nil, fault.Conflictf("agent %s has %s as %s, not as %s", r.Agent, r.Reference, have.Digest, r.Digest)
	}
	details, err := s.details(ctx, r.Agent, r.Reference)
	if err != nil {
		return nil, fmt.Errorf("ask agent %s about image %s: %w", r.Agent, r.Reference, err)
	}
	if details.Digest != have.Digest {
		return nil, fault.Conflictf("image %s has just changed on agent %s", r.Reference, r.Agent).WithNext("try again")
	}
	scope := ScopeGlobal
	if r.Project != "" {
		project, ok := cluster.CanonicalUUID(string(r.Project))
		if !ok {
			return nil, authz.NotFound("project", string(r.Project))
		}
		scope, r.Project = ScopeProject, cluster.ProjectID(project)
	}
	id, err := s.take(ctx, details, scope, r.Project, false)
	if err != nil {
		return nil, err
	}
	return s.Get(ctx, a, id, "")
}

// details asks an agent for the labels of an image.
func (s *Service) details(ctx context.Context, agent cluster.AgentID, reference string) (out cluster.NodeImage, err error) {
	if s.d.Streams == nil {
		return out, fault.Unavailablef("agent %s is not connected", agent)
	}
	query := url.Values{"reference": {reference}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+detailsPath+"?"+query, nil)
	if err != nil {
		return out, err
	}
	resp, err := s.d.Streams.RoundTrip(agent, req)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return out, fault.Unavailablef("the agent answers %s", resp.Status).
			WithNext("see whether the image is still there, and the agent's version")
	}
	// The names are those of wire/node.ImageDetails.
	var d struct {
		ID           string            `json:"id"`
		Architecture string            `json:"architecture"`
		SizeBytes    int64             `json:"size_bytes"`
		Labels       map[string]string `json:"labels"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxLabels)).Decode(&d); err != nil {
		return out, fmt.Errorf("read the agent's answer: %w", err)
	}
	return cluster.NodeImage{Reference: reference, Digest: d.ID, Architecture: d.Architecture, SizeBytes: d.SizeBytes, Labels: d.Labels}, nil
}

// ImportOwn takes the images of the platform's own engine into the catalogue, for everybody: `berth up` calls it, because its
// administrator owns that engine. Images of sessions, of any cluster on that engine, are left out.
func (s *Service) ImportOwn(ctx context.Context, images []cluster.NodeImage) error {
	for _, i := range images {
		if i.Labels[labelOwner] != "" || s.check(i) != nil {
			continue
		}
		if _, err := s.take(ctx, i, ScopeGlobal, "", true); err != nil && !fault.Is(err, fault.Conflict) {
			return err
		}
	}
	return nil
}

// check refuses what cannot be imported.
func (s *Service) check(i cluster.NodeImage) error {
	switch {
	case !isName(i.Reference, maxReference) || !isName(i.Architecture, maxArch):
		return fault.Invalidf("%q cannot be an image of architecture %q", i.Reference, i.Architecture)
	case !digests.MatchString(i.Digest):
		return fault.Invalidf("image %s has no content id but %q", i.Reference, i.Digest)
	case strings.HasPrefix(i.Reference, ofSessions):
		return fault.Invalidf("%s is a name of images that are made of sessions", i.Reference).WithNext("give the image another name")
	}
	return nil
}

// take writes an image into the catalogue and returns its id.
func (s *Service) take(ctx context.Context, i cluster.NodeImage, scope Scope, project cluster.ProjectID,
	automatic bool) (id string, err error) {
	if err := s.check(i); err != nil {
		return "", err
	}
	registry, path, name, tag := splitReference(i.Reference)
	labels := clean(i.Labels)
	for _, l := range []string{labelOwner, labelEmail, labelName, labelID} {
		delete(labels, l) // what an administrator imports is no user's
	}
	p := dbgen.ImportImageParams{ID: s.d.IDs(), Reference: i.Reference, Registry: registry, Project: path, Name: name, Tag: tag,
		Architecture: i.Architecture, Digest: i.Digest, SizeBytes: max(i.SizeBytes, 0), Labels: labels, Scope: string(scope),
		ProjectID: store.Optional(string(project)), Automatic: automatic}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		row, err := tx.ImportImage(ctx, p)
		if store.Missing(err) {
			return fault.Conflictf("image %s was made of a session", i.Reference).WithNext("give the image another name")
		}
		if store.Dangling(err) {
			return authz.NotFound("project", string(project))
		}
		if err != nil {
			return err
		}
		id = row.ID
		if row.Added && scope == ScopeGlobal && registry == authz.LocalRegistry && path == aliasProject {
			return tx.SeedAlias(ctx, name, id)
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("import image %s: %w", i.Reference, err)
	}
	s.d.Store.Wake(store.TopicSchedule)
	return id, nil
}

func clean(labels map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range labels {
		out[store.Text(k)] = store.Text(v)
	}
	return out
}

// Unknown is an image that an agent has and does not offer.
type Unknown struct {
	Agent        cluster.AgentID
	Reference    string
	Architecture string
	Digest       string
	SizeBytes    int64
	// CatalogueDigest is what the catalogue has under that reference; "" when it has none.
	CatalogueDigest string
}

// Unknown lists the images that agents report and that nobody imported, or imported with another content (superadmins).
func (s *Service) Unknown(ctx context.Context, a authz.Actor) ([]Unknown, error) {
	if err := authz.Images.Need(a, authz.Administer, authz.Object{}, "see what agents report"); err != nil {
		return nil, err
	}
	rows, err := s.d.Store.UnknownImages(ctx, maxUnknown)
	if err != nil {
		return nil, fmt.Errorf("read the images of agents: %w", err)
	}
	out := make([]Unknown, len(rows))
	for i, r := range rows {
		out[i] = Unknown{Agent: cluster.AgentID(r.AgentID), Reference: r.Reference, Architecture: r.Architecture, Digest: r.Digest,
			SizeBytes: r.SizeBytes, CatalogueDigest: r.CatalogueDigest}
	}
	return out, nil
}
