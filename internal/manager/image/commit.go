package image

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Commit is an image that the manager has an agent make of a session. All but Digest and SizeBytes is known before.
type Commit struct {
	ID           cluster.ImageID
	Reference    string // of CommitReference
	Architecture string
	Owner        cluster.UserID
	Email        string
	Name         string
	// Base is the image that the session runs. Labels and bounds are taken from its row, not from the agent.
	Base  cluster.ImageID
	Agent cluster.AgentID

	// Digest and SizeBytes are the agent's word.
	Digest    string
	SizeBytes int64
}

// Labels are those that tell a commit from its base image.
func (c Commit) Labels() map[string]string {
	return map[string]string{labelOwner: "user:" + string(c.Owner), labelEmail: c.Email, labelName: c.Name, labelID: string(c.ID)}
}

// MayCommit refuses a commit that the policy of its owner has no room for, and returns how many bytes there are for it; 0 means that
// there is no limit. Commits of one owner pass here one after the other until tx ends.
func MayCommit(ctx context.Context, tx *store.Tx, owner cluster.UserID, reference string) (room int64, err error) {
	has, err := made(ctx, tx, owner, reference)
	if err != nil {
		return 0, err
	}
	if has.Most > 0 && has.Made+has.Making >= int64(has.Most) {
		return 0, fault.Exhaustedf("%d images of sessions are made or being made, policy %s allows %d",
			has.Made+has.Making, has.Policy, has.Most).
			WithNext("commit under the name of an earlier one to replace it, forget one, or ask an administrator for a larger limit")
	}
	if has.MostBytes <= 0 {
		return 0, nil
	}
	if room = has.MostBytes - has.Bytes; room <= 0 {
		return 0, tooManyBytes(has, 0)
	}
	return room, nil
}

func made(ctx context.Context, tx *store.Tx, owner cluster.UserID, reference string) (dbgen.CustomizedImagesRow, error) {
	if err := tx.LockCommits(ctx, string(owner)); err != nil {
		return dbgen.CustomizedImagesRow{}, fmt.Errorf("lock the images of user %s: %w", owner, err)
	}
	has, err := tx.CustomizedImages(ctx, reference, string(owner))
	if err != nil {
		return has, fmt.Errorf("count the images that user %s made: %w", owner, err)
	}
	return has, nil
}

func tooManyBytes(has dbgen.CustomizedImagesRow, more int64) error {
	return fault.Exhaustedf("images of sessions have %d bytes, policy %s allows %d", has.Bytes+more, has.Policy, has.MostBytes).
		WithNext("forget one, or ask an administrator for a larger limit")
}

// Keep takes a commit into the catalogue. One that has too many bytes, or whose digest cannot be a new one, is refused; the agent is
// to delete what it made.
func (s *Service) Keep(ctx context.Context, c Commit) error {
	if !digests.MatchString(c.Digest) {
		return fault.Unavailablef("agent %s made image %s with the digest %q, which is none", c.Agent, c.Reference, c.Digest)
	}
	registry, project, name, tag := splitReference(c.Reference)
	if registry != "local" || c.SizeBytes < 0 {
		return fault.Unavailablef("agent %s made image %s of %d bytes, which cannot be", c.Agent, c.Reference, c.SizeBytes)
	}
	var refused error
	err := s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		has, err := made(ctx, tx, c.Owner, c.Reference)
		if err != nil {
			return err
		}
		taken, err := tx.DigestTaken(ctx, c.Digest, c.Reference)
		if err != nil {
			return err
		}
		switch {
		case taken:
			refused = fault.Conflictf("agent %s says that it made %s, which is another image", c.Agent, c.Digest)
			return nil
		case has.MostBytes > 0 && has.Bytes+c.SizeBytes > has.MostBytes:
			refused = tooManyBytes(has, c.SizeBytes)
			return tx.RemoveCommit(ctx, dbgen.RemoveCommitParams{AgentID: string(c.Agent), Digest: c.Digest, Reference: c.Reference,
				OwnerID: store.Optional(string(c.Owner)), SizeBytes: c.SizeBytes})
		}
		labels, resources := map[string]string{}, json.RawMessage(`{}`)
		if c.Base != "" {
			base, err := tx.ImageByID(ctx, string(c.Base))
			if err != nil {
				return fmt.Errorf("read the image of the session: %w", err)
			}
			labels, resources = maps.Clone(map[string]string(base.Image.Labels)), base.Image.Resources
		}
		maps.Copy(labels, c.Labels())
		if err := tx.RemoveOldCommit(ctx, c.Reference, c.Architecture, c.Digest); err != nil {
			return err
		}
		_, err = tx.KeepCommit(ctx, dbgen.KeepCommitParams{ID: string(c.ID), Reference: c.Reference, Name: name, Tag: tag, Project: project,
			Architecture: c.Architecture, Digest: c.Digest, SizeBytes: c.SizeBytes, Labels: labels, Resources: resources,
			OwnerID: store.Optional(string(c.Owner)), BaseID: store.Optional(string(c.Base)), MadeOn: string(c.Agent)})
		if store.Missing(err) {
			return fault.Conflictf("image %s belongs to somebody else", c.Reference)
		}
		return err
	})
	s.d.Store.Wake(store.TopicImages)
	if err == nil {
		err = refused
	}
	if err != nil {
		return fmt.Errorf("keep image %s: %w", c.Reference, err)
	}
	s.d.Store.Wake(store.TopicSchedule)
	return nil
}
