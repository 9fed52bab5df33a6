// Package administration answers requests of those who run a cluster: agents, scheduling, networks of resource groups, limits, usage,
// tenancies as files and the audit log. It decodes, calls one use case, encodes. httpapi mounts it and does the rest.
package administration

import (
	"time"

	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/metric"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/operation"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/apply"
	"berth.dev/berth/internal/manager/tenancy/directory"
	"berth.dev/berth/internal/manager/tenancy/provision"
	"berth.dev/berth/internal/manager/tenancy/purge"
	"berth.dev/berth/internal/manager/usage"
)

// Handlers answer the routes. All fields are required.
type Handlers struct {
	Audit      *audit.Service
	Usage      *usage.Service
	Metrics    *metric.Service
	Nodes      *node.Service
	Images     *image.Service
	Operations *operation.Service
	Folders    *folder.Service
	Resources  *resource.Service
	Sessions   *session.Service
	Tenancy    *tenancy.Service
	Directory  *directory.Service
	Provision  *provision.Service
	Tenancies  *apply.Service
	Purges     *purge.Service
	// NodeID names this manager.
	NodeID string
	Now    func() time.Time
}

// Routes are all of them.
func (h *Handlers) Routes() []route.Route {
	return []route.Route{
		route.Signed.To("GET /resource/limits", h.limits),
		route.Signed.To("GET /auth/why", h.why),
		route.Signed.To("GET /resource/agents/{a}", h.agentWork),
		route.Signed.To("PATCH /resource/agents/{a}", h.modifyAgent),
		route.Signed.To("POST /manager/announcement", h.setAnnouncement),
		route.Signed.To("PUT /manager/status", h.setManagerStatus),
		route.Signed.To("POST /manager/scheduler/operation", h.schedulerOperation),
		route.Signed.To("GET /manager/scheduler", h.schedulerStatus),
		route.Signed.To("GET /manager/scheduler/status", h.schedulerStatus),
		route.Signed.To("POST /manager/scheduler/trigger", h.triggerScheduler),
		route.Signed.To("POST /session/_/sync-agent-registry", h.syncAgent),
		route.Signed.To("POST /session/_/transit-status", h.statuses),
		route.Signed.To("POST /kernel/_/sync-agent-registry", h.syncAgent),
		route.Signed.To("POST /kernel/_/transit-status", h.statuses),
		route.Signed.To("GET /config/scheduling-policies", h.schedulingPolicies),
		route.Signed.To("GET /scaling-groups/{sg}/scheduler", h.schedulerPolicy),
		route.Signed.To("PATCH /scaling-groups/{sg}/scheduler", h.setSchedulerPolicy),
		route.Signed.To("GET /scaling-groups/{sg}/network", h.groupNetwork),
		route.Signed.To("PATCH /scaling-groups/{sg}/network", h.setGroupNetwork),
		route.Signed.To("GET /resource/usage/month", h.usageMonth),
		route.Signed.To("GET /resource/usage/period", h.usagePeriod),
		route.Signed.To("GET /resource/stats/user/month", h.usageMine),
		route.Signed.To("GET /resource/stats/admin/month", h.usageAll),
		route.Signed.To("GET /session/{s}/metrics", h.sessionMetrics),
		route.Signed.To("GET /metrics/agents/{a}", h.agentMetrics),
		route.Signed.To("GET /metrics/resource-groups/{sg}", h.groupMetrics),
		route.Signed.To("GET /metrics/projects/{p}", h.projectMetrics),
		route.Signed.To("GET /metrics/cluster", h.clusterMetrics),
		route.Signed.To("GET /usage/report", h.usageReport),
		route.Signed.To("GET /usage/series", h.usageSeries),
		route.Signed.To("GET /usage/prices", h.usagePrices),
		route.Signed.To("POST /usage/prices", h.setUsagePrice),
		route.Signed.To("DELETE /usage/prices/{id}", h.removeUsagePrice),
		route.Signed.To("GET /quotas", h.quotaTree),
		route.Signed.To("POST /quotas", h.setQuota),
		route.Signed.To("DELETE /quotas", h.unsetQuota),
		route.Signed.To("POST /quotas/place", h.placeProject),
		route.Signed.To("GET /audit", h.auditLog),
		route.Signed.To("GET /directory", h.directoryStatus),
		route.Unfrozen.To("POST /directory/syncs", h.askDirectorySync),
		route.Signed.To("GET /directory/syncs/{id}", h.directorySync),
		route.Signed.To("POST /directory/removals", h.allowRemovals),
		route.Signed.To("GET /tenancy/export", h.exportTenancy),
		route.Signed.To("POST /tenancy/plan", h.planTenancy),
		route.Signed.To("POST /tenancy/apply", h.applyTenancy),
		route.Signed.To("GET /tenancy/preview", h.previewEnd),
		route.Signed.To("GET /logs/error", h.errorLogs),
		route.Signed.To("POST /logs/error", h.reportError),
		route.Signed.To("POST /logs/error/{id}/clear", h.clearError),
		route.Signed.To("POST /config/get", h.getConfig),
		route.Signed.To("POST /config/set", h.setConfig),
		route.Signed.To("POST /config/delete", h.deleteConfig),
	}
}
