package session

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/store"
)

const (
	commitKind    = "commit_session"
	commitTimeout = 30 * time.Minute
)

// Commit makes an image of a RUNNING session's main kernel in the background, for the session's owner. Its reference is
// local/<owner's id>/<session>:<filename or time>; an earlier image of that reference is replaced.
func (s *Service) Commit(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey,
	filename string) (task string, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "session.commit", ref)
	defer end(&err)
	audit.ActingFor(ctx, string(owner))
	o, err := s.Changeable(ctx, a, ref, owner)
	if err != nil {
		return "", err
	}
	v, err := s.loadSession(ctx, cluster.SessionID(o.ID))
	if err != nil {
		return "", err
	}
	k := v.MainKernel()
	switch {
	case k == nil || v.Status != cluster.Running || k.Agent == "":
		return "", notRunning(v.Name, "committed")
	case s.d.Streams == nil:
		return "", fault.Unavailablef("agent %s is not connected", k.Agent)
	}
	tag := strings.TrimSuffix(strings.TrimSuffix(filename, ".gz"), ".tar")
	if tag == "" {
		tag = s.d.Clock().UTC().Format("20060102-150405")
	}
	c := image.Commit{ID: cluster.ImageID(s.d.IDs()), Reference: image.CommitReference(v.UserID, v.Name, tag), Architecture: k.Architecture,
		Owner: v.UserID, Email: v.UserEmail, Agent: k.Agent}
	_, c.Name, _ = strings.Cut(c.Reference, ":")
	base, err := s.d.Store.ImageOfSession(ctx, o.ID)
	if err != nil {
		return "", fmt.Errorf("read the image of session %s: %w", v.Name, err)
	}
	c.Base = cluster.ImageID(base)
	var room int64
	may := func(ctx context.Context, tx *store.Tx) (err error) {
		// Commits of one owner pass here one after the other: none is counted too late.
		if room, err = image.MayCommit(ctx, tx, v.UserID, c.Reference); err != nil {
			return err
		}
		if _, err = tx.OngoingTask(ctx, commitKind, o.ID); err == nil {
			return fault.Conflictf("session %s is being committed already", v.Name).WithNext("wait until that is done")
		}
		if !store.Missing(err) {
			return fmt.Errorf("look for commits: %w", err)
		}
		return nil
	}
	return s.d.Tasks.StartTask(ctx, a, commitKind, o.ID, may, func(ctx context.Context, report func(string)) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, commitTimeout)
		defer cancel()
		return s.commit(ctx, k.ID, c, room, report)
	})
}

// commit asks the agent, follows its lines of progress and takes the image into the catalogue. What the agent says of the image
// beyond its digest and its size does not matter.
func (s *Service) commit(ctx context.Context, kernel cluster.KernelID, c image.Commit, room int64, report func(string)) (string, error) {
	// The names of this body are those of wire/node.CommitRequest.
	body, err := json.Marshal(map[string]any{"reference": c.Reference, "labels": c.Labels(), "max_bytes": room})
	if err != nil {
		return "", fmt.Errorf("encode commit: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/kernels/"+string(kernel)+"/commit", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.d.Streams.RoundTrip(c.Agent, req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", agentError(resp)
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		var p struct {
			Message string
			Error   string
			Kind    string
			Image   *struct {
				ID        string
				SizeBytes int64 `json:"size_bytes"`
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return "", fmt.Errorf("read the agent's progress: %w", err)
		}
		switch {
		case p.Error != "":
			if p.Kind == fault.Exhausted.String() {
				return "", fault.Exhaustedf("%s", p.Error)
			}
			return "", fault.Unavailablef("%s", p.Error)
		case p.Image != nil:
			c.Digest, c.SizeBytes = p.Image.ID, p.Image.SizeBytes
			return c.Reference, s.d.Image.Keep(ctx, c)
		case p.Message != "":
			report(p.Message)
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("follow the commit: %w", err)
	}
	return "", fault.Unavailablef("agent %s broke off the commit", c.Agent)
}

// CommitStatus says whether a commit is going on: "ready" or "ongoing".
func (s *Service) CommitStatus(ctx context.Context, a authz.Actor, ref string,
	owner cluster.AccessKey) (status string, kernel cluster.KernelID, err error) {
	o, err := s.findOwner(ctx, a, ref, owner)
	if err != nil {
		return "", "", err
	}
	v, err := s.loadSession(ctx, cluster.SessionID(o.ID))
	if err != nil {
		return "", "", err
	}
	k := v.MainKernel()
	if k == nil {
		return "", "", authz.NotFound("main kernel", ref)
	}
	_, err = s.d.Store.OngoingTask(ctx, commitKind, o.ID)
	switch {
	case store.Missing(err):
		return "ready", k.ID, nil
	case err != nil:
		return "", "", fmt.Errorf("look for commits: %w", err)
	}
	return "ongoing", k.ID, nil
}
