package graphapi

import (
	"context"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/graphapi/gqlexec"
	"berth.dev/berth/internal/manager/graphapi/model"
	"berth.dev/berth/internal/manager/session"
)

// The types of sessions, their containers and images in global ids.
const (
	nodeOfSession   = "ComputeSessionNode"
	nodeOfKernel    = "KernelNode"
	nodeOfImage     = "ImageNode"
	sessionPageSize = 100
)

type (
	sessionNodes struct{ *resolver }
	kernelNodes  struct{ *resolver }
)

func (r *resolver) ComputeSessionNode() gqlexec.ComputeSessionNodeResolver { return sessionNodes{r} }
func (r *resolver) KernelNode() gqlexec.KernelNodeResolver                 { return kernelNodes{r} }

// toSessionNode is a session as a node; the lists of related nodes come from resolvers.
func toSessionNode(s *session.Session) *model.ComputeSessionNode {
	c := toSession(s)
	m := &model.ComputeSessionNode{
		ID: globalID(nodeOfSession, string(s.ID)), RowID: c.ID, Tag: c.Tag, Name: c.Name, Type: new(string(s.Type)), Priority: c.Priority,
		ClusterMode: c.ClusterMode, ClusterSize: c.ClusterSize, DomainName: c.DomainName, ProjectID: c.GroupID, UserID: c.UserID,
		AccessKey: c.AccessKey, Permissions: []*string{}, Status: c.Status, StatusInfo: c.StatusInfo, StatusData: c.StatusData,
		StatusChanged: c.StatusChanged, CreatedAt: c.CreatedAt, TerminatedAt: c.TerminatedAt, StartsAt: c.StartsAt,
		ScheduledAt: c.ScheduledAt, StartupCommand: c.StartupCommand, Result: c.Result, CallbackURL: c.CallbackURL,
		CommitStatus: new("ready"), AbusingReports: c.AbusingReports, AgentIds: c.AgentIds, ResourceOpts: c.ResourceOpts,
		ScalingGroup: c.ScalingGroup, ServicePorts: c.ServicePorts, VfolderMounts: c.Mounts, OccupiedSlots: c.OccupiedSlots,
		RequestedSlots: c.RequestedSlots, ImageReferences: []*string{&s.Image}, NumQueries: c.NumQueries,
		KernelNodes: &model.KernelConnection{
			PageInfo: pageInfo(0, len(s.Kernels), len(s.Kernels)), Edges: []*model.KernelEdge{}, Count: new(len(s.Kernels)),
		},
	}
	for i := range s.Kernels {
		m.KernelNodes.Edges = append(m.KernelNodes.Edges, &model.KernelEdge{
			Node: toKernelNode(&s.Kernels[i]), Cursor: cursor(i),
		})
	}
	return m
}

func toKernelNode(k *session.Kernel) *model.KernelNode {
	c := toContainer(k)
	return &model.KernelNode{
		ID: globalID(nodeOfKernel, string(k.ID)), RowID: c.KernelID, ClusterIdx: c.ClusterIdx, LocalRank: c.LocalRank,
		ClusterRole: c.ClusterRole, ClusterHostname: c.ClusterHostname, SessionID: c.SessionID, ImageReference: c.Image,
		Architecture: c.Architecture, Status: c.Status, StatusChanged: c.StatusChanged, StatusInfo: c.StatusInfo, StatusData: c.StatusData,
		CreatedAt: c.CreatedAt, TerminatedAt: c.TerminatedAt, StartsAt: c.StartsAt, ScheduledAt: c.ScheduledAt, AgentID: c.Agent,
		AgentAddr: c.AgentAddr, ContainerID: c.ContainerID, ExitCode: c.ExitCode, ResourceOpts: c.ResourceOpts,
		OccupiedSlots: c.OccupiedSlots, LiveStat: c.LiveStat, LastStat: c.LastStat, PreopenPorts: c.PreopenPorts,
	}
}

// sessionConnection is a page of sessions.
func sessionConnection(list []*session.Session, offset, total int) *model.ComputeSessionConnection {
	out := &model.ComputeSessionConnection{PageInfo: pageInfo(offset, len(list), total), Edges: []*model.ComputeSessionEdge{}, Count: &total}
	for i, s := range list {
		out.Edges = append(out.Edges, &model.ComputeSessionEdge{Node: toSessionNode(s), Cursor: cursor(offset + i)})
	}
	return out
}

// ComputeSessionNode accepts a UUID or the relay id. The scope and the project only name where the caller found the session.
func (q queries) ComputeSessionNode(ctx context.Context, id string, _, _, _ *string) (*model.ComputeSessionNode, error) {
	_, raw := fromGlobalID(id)
	raw, err := uuid("session id", raw)
	if err != nil {
		return nil, err
	}
	s, err := loadSession(ctx, cluster.SessionID(raw))
	if s == nil || err != nil {
		return nil, err
	}
	return toSessionNode(s), nil
}

func (q queries) ComputeSessionNodes(
	ctx context.Context, scope, project, _, filter, order *string, offset *int, before, after *string, first, last *int,
) (*model.ComputeSessionConnection, error) {
	f := session.Filter{Query: page(filter, order, sessionPageSize, value(offset)), Project: cluster.ProjectID(value(project))}
	switch kind, name, _ := strings.Cut(value(scope), ":"); kind {
	case "", "system":
	case "domain":
		f.Domain = name
	case "project", "user":
		id, err := uuid("scope_id", name)
		if err != nil {
			return nil, err
		}
		if kind == "user" {
			f.Filter = also(f.Filter, "user_id", id)
		} else {
			f.Project = cluster.ProjectID(id)
		}
	default:
		return nil, fault.Invalidf("%.80q is no scope of sessions", *scope).WithNext("write user:<uuid>, project:<uuid> or domain:<name>")
	}
	counting, err := turnPage(&f.Query, offset, before, after, first, last)
	if err != nil {
		return nil, err
	}
	f.CountOnly = counting
	p, err := q.sessions.List(ctx, q.who(ctx), f)
	if err != nil {
		return nil, err
	}
	if counting {
		return sessionConnection(nil, 0, p.Total), nil
	}
	return sessionConnection(remember(ctx, p.Items), f.Offset, p.Total), nil
}

// Dependees are the sessions that this one waits for.
func (s sessionNodes) Dependees(ctx context.Context, obj *model.ComputeSessionNode) (*model.ComputeSessionConnection, error) {
	self, err := loadSession(ctx, cluster.SessionID(*obj.RowID))
	if self == nil || err != nil {
		return sessionConnection(nil, 0, 0), err
	}
	found, err := loadRelated(ctx, dependsOn(self))
	if err != nil {
		return nil, err
	}
	return sessionConnection(found, 0, len(found)), nil
}

// Dependents are the sessions that wait for this one.
func (s sessionNodes) Dependents(ctx context.Context, obj *model.ComputeSessionNode) (*model.ComputeSessionConnection, error) {
	found, err := loadersOf(ctx).dependents.load(ctx, cluster.SessionID(*obj.RowID))
	if err != nil {
		return nil, err
	}
	return sessionConnection(found, 0, len(found)), nil
}

func (s sessionNodes) StatusHistory(ctx context.Context, obj *model.ComputeSessionNode) (*string, error) {
	return sessions(s).StatusHistory(ctx, &model.ComputeSession{ID: obj.RowID})
}

func (s sessionNodes) IdleChecks(ctx context.Context, obj *model.ComputeSessionNode) (*string, error) {
	return sessions(s).IdleChecks(ctx, &model.ComputeSession{ID: obj.RowID, Status: obj.Status})
}

// Image is null when the image was forgotten since.
func (k kernelNodes) Image(ctx context.Context, obj *model.KernelNode) (*model.ImageNode, error) {
	im, err := loadImage(ctx, value(obj.ImageReference), value(obj.Architecture))
	if im == nil || err != nil {
		return nil, err
	}
	return toImageNode(im), nil
}
