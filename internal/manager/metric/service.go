// Package metric keeps and tells the history of use: what kernels and agents used of cores, memory, devices, disk and network, minute by
// minute. A Recorder stands in the way of what agents measure and writes the minutes that are over; the loop of the leader sums minutes
// up to hours and forgets old days; Service tells. Minutes and hours are partitions of PostgreSQL by day of UTC, so forgetting costs
// nothing.
package metric

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Sessions find sessions that an actor may see; *session.Service satisfies it.
type Sessions interface {
	Find(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey) (*session.Session, error)
}

// Agents find agents that an actor may see; *node.Service satisfies it.
type Agents interface {
	Get(ctx context.Context, a authz.Actor, id cluster.AgentID) (*node.Agent, error)
}

// Projects find projects that an actor may see; *tenancy.Service satisfies it.
type Projects interface {
	VisibleProject(ctx context.Context, a authz.Actor, ref, domain string) (dbgen.Project, error)
}

// Deps are what a Service works with; all but Source are required.
type Deps struct {
	Store    *store.Store
	Sessions Sessions
	Agents   Agents
	Projects Projects
	Clock    func() time.Time
	// Source tells points in place of our tables.
	Source Source
}

// Service is the use cases.
type Service struct{ d Deps }

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Sessions == nil || d.Agents == nil || d.Projects == nil || d.Clock == nil {
		return nil, fault.New(fault.Internal, "metric: a store, sessions, agents, projects and a clock are required")
	}
	return &Service{d}, nil
}

const (
	// usualPoints is how many points a range without a step gets about, maxPoints how many it may have.
	usualPoints, maxPoints = 240, 1500
	// usualRange is what is told where no begin is asked for, maxRange the longest.
	usualRange, maxRange = 3 * time.Hour, 400 * 24 * time.Hour
	// maxKernels is how many kernels are added up.
	maxKernels = 20_000
)

// Range is a span of time in steps. Zero values have defaults: the last three hours until now, in about 240 steps.
type Range struct {
	From, Until time.Time
	Step        time.Duration
}

// steps are those that are chosen by themselves.
var steps = []time.Duration{Minute, 2 * Minute, 5 * Minute, 10 * Minute, 15 * Minute, 30 * Minute, time.Hour, 2 * time.Hour, 6 * time.Hour,
	12 * time.Hour, 24 * time.Hour}

// Complete fills in defaults, and aligns the range to its steps in UTC.
func (r Range) Complete(now time.Time) (Range, error) {
	if r.Until.IsZero() {
		r.Until = now
	}
	if r.From.IsZero() {
		r.From = r.Until.Add(-usualRange)
	}
	long := r.Until.Sub(r.From)
	switch {
	case long <= 0:
		return r, fault.Invalidf("the range from %s to %s is empty", r.From.UTC().Format(time.RFC3339), r.Until.UTC().Format(time.RFC3339)).
			WithNext("let it end after its begin")
	case long > maxRange:
		return r, fault.Invalidf("the range is longer than %d days", maxRange/(24*time.Hour)).WithNext("ask for its parts")
	}
	if r.Step == 0 {
		r.Step = steps[len(steps)-1]
		for _, s := range steps {
			if long/s <= usualPoints {
				r.Step = s
				break
			}
		}
	}
	switch {
	case r.Step < Minute || r.Step%Minute != 0:
		return r, fault.Invalidf("a step of %s is no number of minutes", r.Step).WithNext("choose 60 seconds or a multiple")
	case long/r.Step > maxPoints:
		return r, fault.Invalidf("the range has %d steps of %s; %d are the most", long/r.Step, r.Step, maxPoints).
			WithNext("choose longer steps or a shorter range")
	}
	r.From, r.Until = r.From.UTC().Truncate(r.Step), r.Until.UTC()
	return r, nil
}

// Point is one step. Steps of which nothing is known are left out.
type Point struct {
	At time.Time
	Values
}

// Series are the points of one kernel or agent, or of many added up.
type Series struct {
	Kernel   cluster.KernelID // "" for what is no kernel's
	Hostname string           // of the kernel in its session
	Agent    cluster.AgentID
	Points   []Point
}

// History is what is known of a range.
type History struct {
	Range  Range
	Series []Series
}

// OfSession tells what the kernels of a session used, each by itself.
func (s *Service) OfSession(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey, r Range) (History, error) {
	r, err := r.Complete(s.d.Clock())
	if err != nil {
		return History{}, err
	}
	is, err := s.d.Sessions.Find(ctx, a, ref, owner)
	if err != nil {
		return History{}, err
	}
	ids := make([]string, len(is.Kernels))
	for i, k := range is.Kernels {
		ids[i] = string(k.ID)
	}
	points, err := s.points(ctx, kernels, ids, r, false)
	if err != nil {
		return History{}, err
	}
	out := History{Range: r}
	for _, k := range is.Kernels {
		out.Series = append(out.Series, Series{Kernel: k.ID, Hostname: k.ClusterHostname, Agent: k.Agent, Points: points[string(k.ID)]})
	}
	return out, nil
}

// OfAgent tells what an agent's machine used (superadmins and monitors).
func (s *Service) OfAgent(ctx context.Context, a authz.Actor, id cluster.AgentID, r Range) (History, error) {
	r, err := r.Complete(s.d.Clock())
	if err != nil {
		return History{}, err
	}
	if _, err := s.d.Agents.Get(ctx, a, id); err != nil {
		return History{}, err
	}
	points, err := s.points(ctx, agents, []string{string(id)}, r, false)
	if err != nil {
		return History{}, err
	}
	return History{r, []Series{{Agent: id, Points: points[string(id)]}}}, nil
}

// OfGroup tells what the machines of a resource group used together, "" being all machines (superadmins and monitors).
func (s *Service) OfGroup(ctx context.Context, a authz.Actor, group string, r Range) (History, error) {
	if err := authz.Agents.Need(a, authz.See, authz.Object{}, "look at the use of agents"); err != nil {
		return History{}, err
	}
	r, err := r.Complete(s.d.Clock())
	if err != nil {
		return History{}, err
	}
	ids, err := s.ids(ctx, `SELECT id FROM agents WHERE $1 = '' OR resource_group = $1 ORDER BY id LIMIT $2`, group)
	if err != nil {
		return History{}, err
	}
	if len(ids) == 0 && group != "" {
		if known, err := s.ids(ctx, `SELECT name FROM resource_groups WHERE name = $1 LIMIT $2`, group); err != nil || len(known) == 0 {
			return History{}, errorOr(err, authz.NotFound("resource group", group))
		}
	}
	return s.together(ctx, agents, ids, r)
}

// OfProject tells what the kernels of a project used together (its administrators, those of its domain, superadmins and monitors).
func (s *Service) OfProject(ctx context.Context, a authz.Actor, ref, domain string, r Range) (History, error) {
	r, err := r.Complete(s.d.Clock())
	if err != nil {
		return History{}, err
	}
	if domain == "" {
		domain = a.Domain
	}
	p, err := s.d.Projects.VisibleProject(ctx, a, ref, domain)
	if err != nil {
		return History{}, err
	}
	is := authz.Object{Name: ref, Domain: p.DomainName, Project: cluster.ProjectID(p.ID)}
	if err := authz.Projects.Check(a, authz.SeeMembers, is); err != nil {
		return History{}, err
	}
	ids, err := s.ids(ctx, `SELECT k.id::text FROM kernels k JOIN sessions s ON s.id = k.session_id
		WHERE s.project_id = $1::uuid AND s.ended_at IS NULL
		UNION ALL SELECT k.id::text FROM kernels k JOIN sessions s ON s.id = k.session_id
		WHERE s.project_id = $1::uuid AND s.ended_at >= $3 LIMIT $2`, p.ID, r.From)
	if err != nil {
		return History{}, err
	}
	return s.together(ctx, kernels, ids, r)
}

func errorOr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// ids reads names of kernels or agents; $2 of the query is how many it may return.
func (s *Service) ids(ctx context.Context, query, of string, more ...any) ([]string, error) {
	rows, err := s.d.Store.DB().Query(ctx, query, append([]any{of, maxKernels + 1}, more...)...)
	if err != nil {
		return nil, fmt.Errorf("find what was measured: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("find what was measured: %w", err)
	}
	if len(ids) > maxKernels {
		return nil, fault.Exhaustedf("more than %d kernels were there in this range", maxKernels).WithNext("ask for a shorter range")
	}
	return ids, nil
}

// together adds up the use of some.
func (s *Service) together(ctx context.Context, of table, ids []string, r Range) (History, error) {
	points, err := s.points(ctx, of, ids, r, true)
	if err != nil {
		return History{}, err
	}
	return History{r, []Series{{Points: points[""]}}}, nil
}

// table is where minutes and hours are.
type table struct {
	name, column, kind string
	is                 Kind
}

var (
	kernels = table{"kernel", "kernel_id", "uuid", OfKernels}
	agents  = table{"agent", "agent_id", "text", OfAgents}
)

// firstDay is the oldest day that has a table, by the names of tables; now for none. Minutes of kernels may go earlier than those of
// agents.
const firstDay = `SELECT coalesce(min(right(c.relname, 8)::date)::timestamp AT TIME ZONE 'UTC', now())
	FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = to_regclass($1::text)`

// points reads the points of some, by their ids, or of all added up, by "". Hours stand for minutes that are gone, and where the steps are
// no shorter for all that are summed up.
func (s *Service) points(ctx context.Context, of table, ids []string, r Range, sum bool) (map[string][]Point, error) {
	out := map[string][]Point{}
	if len(ids) == 0 {
		return out, nil
	}
	if s.d.Source != nil {
		return s.d.Source.Points(ctx, of.is, ids, r, sum)
	}
	minutesFrom, err := s.d.Store.MetricProgress(ctx)
	if r.Step < time.Hour && err == nil {
		err = s.d.Store.DB().QueryRow(ctx, firstDay, of.name+"_minutes").Scan(&minutesFrom)
	}
	if err != nil {
		return nil, fmt.Errorf("read how far hours are: %w", err)
	}
	minutesFrom = minutesFrom.UTC().Truncate(time.Hour)
	q, qDevices := queries(of, sum)
	args := []any{ids, r.From, r.Until, r.Step.Seconds(), minutesFrom}
	rows, err := s.d.Store.DB().Query(ctx, q, args...)
	if err != nil {
		return nil, fmt.Errorf("read the history of use: %w", err)
	}
	var id string
	var p Point
	_, err = pgx.ForEachRow(rows, []any{&id, &p.At, &p.CPU, &p.Mem, &p.IORead, &p.IOWrite, &p.NetRx, &p.NetTx}, func() error {
		p.At = p.At.UTC()
		out[id] = append(out[id], p)
		p = Point{}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the history of use: %w", err)
	}
	return out, s.addDevices(ctx, qDevices, args, out)
}

// queries are those for figures and for devices, of each by itself or of all added up.
func queries(of table, sum bool) (figures, ofDevices string) {
	source := fmt.Sprintf(`SELECT %[2]s::text AS id, at, cpu, mem, io_read, io_write, net_rx, net_tx, devices FROM %[1]s_minutes
		WHERE %[2]s = ANY($1::%[3]s[]) AND at >= greatest($2::timestamptz, $5::timestamptz) AND at < $3
	UNION ALL SELECT %[2]s::text, at, cpu, mem, io_read, io_write, net_rx, net_tx, devices FROM %[1]s_hours
		WHERE %[2]s = ANY($1::%[3]s[]) AND at >= $2 AND at < least($3::timestamptz, $5::timestamptz)`, of.name, of.column, of.kind)
	each := `SELECT id, date_bin(make_interval(secs => $4), at, 'epoch'::timestamptz) AS step,
		avg(cpu)::float8 AS cpu, avg(mem)::float8 AS mem,
		avg(io_read)::float8 AS io_read, avg(io_write)::float8 AS io_write, avg(net_rx)::float8 AS net_rx, avg(net_tx)::float8 AS net_tx
		FROM source GROUP BY 1, 2`
	devices := `SELECT id, date_bin(make_interval(secs => $4), at, 'epoch'::timestamptz) AS step, d.name, avg(d.value::float8) AS mean
		FROM source, jsonb_each_text(devices) AS d(name, value) GROUP BY 1, 2, 3`
	outer := `SELECT id, step, cpu, mem, io_read, io_write, net_rx, net_tx FROM each ORDER BY 1, 2`
	outerDevices := `SELECT id, step, name, mean FROM each ORDER BY 1, 2, 3`
	if sum {
		outer = `SELECT '', step, sum(cpu), sum(mem), sum(io_read), sum(io_write), sum(net_rx), sum(net_tx) FROM each GROUP BY step
			ORDER BY step`
		outerDevices = `SELECT '', step, name, sum(mean) FROM each GROUP BY step, name ORDER BY step, name`
	}
	with := func(each, outer string) string {
		return "WITH source AS (" + source + "), each AS (" + each + ") " + outer
	}
	return with(each, outer), with(devices, outerDevices)
}

// addDevices adds what was measured of devices to points.
func (s *Service) addDevices(ctx context.Context, query string, args []any, to map[string][]Point) error {
	rows, err := s.d.Store.DB().Query(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("read the history of devices: %w", err)
	}
	var id, name string
	var at time.Time
	var mean float64
	_, err = pgx.ForEachRow(rows, []any{&id, &at, &name, &mean}, func() error {
		list := to[id]
		i, found := slices.BinarySearchFunc(list, at.UTC(), func(p Point, at time.Time) int { return p.At.Compare(at) })
		if !found {
			return nil // a minute came between the two looks
		}
		if list[i].Devices == nil {
			list[i].Devices = map[string]float64{}
		}
		list[i].Devices[name] = mean
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the history of devices: %w", err)
	}
	return nil
}
