package usage

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

// maxKernels is how many intervals of kernels are told one by one.
const maxKernels = 50_000

// Kernel is what a kernel held within a period, with what is still known of it.
type Kernel struct {
	ID          cluster.KernelID
	Session     cluster.SessionID
	SessionName string
	Domain      string
	Project     cluster.ProjectID
	ProjectName string
	Email       string
	AccessKey   cluster.AccessKey
	Agent       cluster.AgentID
	Image       string
	Slots       cluster.Slots
	// From and Until are when it held them, within the period; Held is how long altogether.
	From, Until time.Time
	Held        time.Duration
	// What follows is unknown ("" or nil) of kernels that were forgotten.
	FullName    string
	ContainerID string
	ClusterMode string
	Status      string
	StatusInfo  string
	// StatusChanged, CreatedAt and EndedAt are the kernel's own, whatever the period.
	StatusChanged, CreatedAt, EndedAt *time.Time
	SharedMemory                      string
}

// Kernels tells, kernel by kernel, what was held in a period in the projects of the given ids; none means all (superadmins and
// monitors). The
// intervals of a kernel that held the same slots on the same agent are one. They come by project and time.
func (s *Service) Kernels(ctx context.Context, a authz.Actor, p Period, projects []string) ([]Kernel, error) {
	if err := all(a, "see the usage of projects"); err != nil {
		return nil, err
	}
	if err := p.Check(); err != nil {
		return nil, err
	}
	ids := []string{}
	for _, ref := range projects {
		id, ok := cluster.CanonicalUUID(ref)
		if !ok {
			return nil, fault.Invalidf("%.80q is no id of a project", ref)
		}
		ids = append(ids, id)
	}
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := s.d.Store.DB().Query(ctx, `SELECT i.kernel_id::text, i.session_id::text, i.session_name, i.domain_name,
		i.project_id::text, i.project_name,
	i.email, i.access_key, i.agent_id, i.image, i.slots, i.since, i.until, i.held, coalesce(u.full_name, ''), coalesce(k.container_id, ''),
	coalesce(s.cluster_mode, ''), coalesce(k.status, ''), coalesce(k.status_info, ''), k.status_changed, k.created_at, k.ended_at,
	coalesce(k.shmem_bytes::text, s.resource_opts ->> 'shmem', '')
FROM (
	SELECT kernel_id, session_id, session_name, domain_name, project_id, max(project_name) AS project_name, user_id,
		max(email) AS email, access_key,
		agent_id, image, slots, min(greatest(from_at, $1::timestamptz)) AS since, max(least(coalesce(to_at, $3), $2, $3)) AS until,
		(extract(epoch FROM sum(least(coalesce(to_at, $3), $2, $3) - greatest(from_at, $1))) * 1000000)::bigint AS held
	FROM usage_intervals WHERE from_at < least($2::timestamptz, $3::timestamptz) AND coalesce(to_at, 'infinity') > $1
		AND (cardinality($4::uuid[]) = 0 OR project_id = ANY($4))
	GROUP BY kernel_id, session_id, session_name, domain_name, project_id, user_id, access_key, agent_id, image, slots
	ORDER BY project_id, since, kernel_id LIMIT $5
) i LEFT JOIN users u ON u.id = i.user_id LEFT JOIN kernels k ON k.id = i.kernel_id LEFT JOIN sessions s ON s.id = i.session_id
ORDER BY i.project_id, i.since, i.kernel_id`, p.From, p.Until, now, ids, maxKernels+1)
	if err != nil {
		return nil, fmt.Errorf("read the usage ledger: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (k Kernel, err error) {
		var slots []byte
		var held int64
		err = r.Scan(&k.ID, &k.Session, &k.SessionName, &k.Domain, &k.Project, &k.ProjectName, &k.Email, &k.AccessKey, &k.Agent, &k.Image, &slots,
			&k.From, &k.Until, &held, &k.FullName, &k.ContainerID, &k.ClusterMode, &k.Status, &k.StatusInfo, &k.StatusChanged, &k.CreatedAt,
			&k.EndedAt, &k.SharedMemory)
		if err != nil {
			return k, err
		}
		k.From, k.Until, k.Held = k.From.UTC(), k.Until.UTC(), time.Duration(held)*time.Microsecond
		return k, json.Unmarshal(slots, &k.Slots)
	})
	if err != nil {
		return nil, fmt.Errorf("read the usage ledger: %w", err)
	}
	if len(out) > maxKernels {
		return nil, fault.Exhaustedf("more than %d kernels held something in this period", maxKernels).
			WithNext("ask for a shorter period or for one project, or for sums: GET /usage/report")
	}
	return out, nil
}
