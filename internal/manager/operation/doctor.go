package operation

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Doctor compares the rows with each other (superadmins). No findings means healthy.
func (s *Service) Doctor(ctx context.Context, a authz.Actor) ([]cluster.Finding, error) {
	if err := authz.Cluster.Need(a, authz.See, authz.Object{}, "examine the cluster"); err != nil {
		return nil, err
	}
	return s.Findings(ctx)
}

// Findings is Doctor for the machine's own administrator, who needs no account (internal).
func (s *Service) Findings(ctx context.Context) ([]cluster.Finding, error) {
	rows, err := s.d.Store.DoctorRows(ctx)
	if err != nil {
		return nil, fmt.Errorf("examine rows: %w", err)
	}
	sessions, err := s.d.Store.LiveStatuses(ctx)
	if err != nil {
		return nil, fmt.Errorf("examine sessions: %w", err)
	}
	exports, err := s.d.Store.FailingAuditExports(ctx)
	if err != nil {
		return nil, fmt.Errorf("examine exports of the audit log: %w", err)
	}
	out := []cluster.Finding{}
	for _, r := range rows {
		out = append(out, finding(r))
	}
	for _, e := range exports {
		out = append(out, cluster.Finding{
			Severity: "warning", Kind: "audit-export-waits", Object: "export " + e.Name + " of the audit log",
			Detail: fmt.Sprintf("%d entries wait since %s: %s", e.Waiting, e.FailingSince.UTC().Format(time.RFC3339), e.Problem),
			Next:   "see whether the receiver runs, and manager.audit_syslog in the configuration; nothing is lost meanwhile",
		})
	}
	for _, r := range sessions {
		kernels := make([]cluster.Status, len(r.Kernels))
		for i, k := range r.Kernels {
			kernels[i] = cluster.Status(k)
		}
		switch {
		case len(kernels) == 0:
			out = append(out, cluster.Finding{
				Severity: "error",
				Kind:     "session-without-kernels",
				Object:   "session " + r.ID,
				Detail:   fmt.Sprintf("%s is %s and has no kernels", r.Name, r.Status),
				Next:     "berth session rm --force " + r.ID,
			})
		case cluster.SessionStatus(kernels) != r.Status:
			out = append(out, cluster.Finding{
				Severity: "error",
				Kind:     "session-disagrees",
				Object:   "session " + r.ID,
				Detail:   fmt.Sprintf("%s is %s, but its kernels (%v) say %s", r.Name, r.Status, r.Kernels, cluster.SessionStatus(kernels)),
				Next:     "restart the manager; report this as a defect",
			})
		}
	}
	return out, nil
}

// findingText gives each kind its severity, words and advice.
var findingText = map[string]struct{ severity, text, next string }{
	"kernel-on-dead-agent": {"error", "is %s although its agent %s is lost for long",
		"start that agent, or wait for the manager to give its kernels up"},
	"missed-deadline":      {"error", "is %s on agent %s past its deadline", "see whether the manager's sweeper runs (berth status)"},
	"stale-removal":        {"warning", "was to be removed (%s) by agent %s, which has not done so", "look at that agent's log and engine"},
	"callback-stuck":       {"warning", "has a callback that cannot be delivered: %s%s", "see whether the address is right and allowed"},
	"live-kernel-of-ended": {"error", "is %s on agent %s although its session has ended", "restart the manager; report this as a defect"},
	"agent-engine-not-ok":  {"warning", "has no working engine: %s%s", "start the engine on that machine"},
	"image-differs": {"warning", "is on agent %s with another content (%s) than the catalogue's; sessions of it do not run there",
		"load the same image there, or berth image import that one"},
	"agent-disk-low":        {"warning", "is short of disk: %s%s", "free space on that machine, or end sessions there"},
	"image-alias-to-nobody": {"warning", "names an image that is gone: %s%s", "berth image alias, or build the image again"},
}

func finding(r dbgen.DoctorRowsRow) cluster.Finding {
	t, ok := findingText[r.Kind]
	if !ok {
		return cluster.Finding{
			Severity: "warning",
			Kind:     r.Kind,
			Object:   r.Object,
			Detail:   r.A + " " + r.B,
			Next:     "",
		}
	}
	return cluster.Finding{
		Severity: t.severity,
		Kind:     r.Kind,
		Object:   r.Object,
		Detail:   r.Object + " " + fmt.Sprintf(t.text, r.A, r.B),
		Next:     t.next,
	}
}
