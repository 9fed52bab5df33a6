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
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
)

const (
	commitKind    = "commit_session"
	commitTimeout = 30 * time.Minute
)

// Commit makes an image of a RUNNING session's main kernel in the background. Its reference is
// berth/commit-<session>:<filename or time>.
func (s *Service) Commit(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey,
	filename string) (task string, err error) {
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
	if _, err := s.d.Store.OngoingTask(ctx, commitKind, o.ID); err == nil {
		return "", fault.Conflictf("session %s is being committed already", v.Name).WithNext("wait until that is done")
	} else if !store.Missing(err) {
		return "", fmt.Errorf("look for commits: %w", err)
	}
	tag := imageWord(strings.TrimSuffix(strings.TrimSuffix(filename, ".gz"), ".tar"))
	if tag == "" {
		tag = s.d.Clock().UTC().Format("20060102-150405")
	}
	reference := "berth/commit-" + imageWord(v.Name) + ":" + tag
	if err := s.mayCustomize(ctx, v, reference); err != nil {
		return "", err
	}
	// The names of this body are those of wire/node.CommitRequest.
	body, err := json.Marshal(map[string]any{"reference": reference, "labels": map[string]string{
		"ai.backend.customized-image.owner": "user:" + string(v.UserID), "ai.backend.customized-image.name": tag,
	}})
	if err != nil {
		return "", fmt.Errorf("encode commit: %w", err)
	}
	agent, kernel := k.Agent, k.ID
	return s.d.Tasks.StartTask(ctx, a, commitKind, o.ID, func(ctx context.Context, report func(string)) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, commitTimeout)
		defer cancel()
		return s.commit(ctx, agent, kernel, body, report)
	})
}

// mayCustomize refuses one more image than the policy of the session's user allows; 0 or less is no limit.
func (s *Service) mayCustomize(ctx context.Context, v *Session, reference string) error {
	has, err := s.d.Store.CustomizedImages(ctx, reference, string(v.UserID))
	if err != nil {
		return fmt.Errorf("count the images that %s made: %w", v.UserEmail, err)
	}
	if has.Most <= 0 || has.Made < int64(has.Most) {
		return nil
	}
	return quota("%s has made %d images of sessions, policy %s allows %d", v.UserEmail, has.Made, has.Policy, has.Most).
		WithNext("commit under the name of an earlier one to replace it, or ask an administrator to forget one or for a larger limit")
}

// commit asks the agent and follows its lines of progress.
func (s *Service) commit(ctx context.Context, agent cluster.AgentID, kernel cluster.KernelID, body []byte,
	report func(string)) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/kernels/"+string(kernel)+"/commit", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.d.Streams.RoundTrip(agent, req)
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
			Image   *struct{ Reference string }
		}
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return "", fmt.Errorf("read the agent's progress: %w", err)
		}
		switch {
		case p.Error != "":
			return "", fault.Unavailablef("%s", p.Error)
		case p.Image != nil:
			return p.Image.Reference, nil
		case p.Message != "":
			report(p.Message)
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("follow the commit: %w", err)
	}
	return "", fault.Unavailablef("agent %s broke off the commit", agent)
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

// imageWord makes a part of an image reference of any text.
func imageWord(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, text)
	for strings.Contains(text, "--") || strings.Contains(text, "..") {
		text = strings.ReplaceAll(strings.ReplaceAll(text, "--", "-"), "..", ".")
	}
	text = strings.ReplaceAll(strings.ReplaceAll(text, ".-", "."), "-.", ".")
	return strings.Trim(text[:min(len(text), 100)], "-.")
}
