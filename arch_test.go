// Package berth_test holds the architecture: every package with its duty, which package may import which, and the budgets of
// packages, files and lines. It parses the sources itself, because the go command caches the result of a test that calls it
// although the sources changed.
package berth_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	module          = "berth.dev/berth/"
	maxPackageLines = 6000
	maxFileLines    = 800
	// maxColumns counts characters; a tab is one.
	maxColumns = 140
)

// rule is one package: what it is for and what it may import of this module. A package may also import what lies below it.
type rule struct {
	dir   string
	duty  string
	allow []string // directories; each includes everything below it
	// stdOnly forbids third-party modules.
	stdOnly bool
	// pure forbids, on top of stdOnly, everything that reaches outside or differs from run to run.
	pure bool
	// testOnly packages may be imported by tests and other testOnly packages alone.
	testOnly bool
}

// The table: one rule per package. To add a package, add its line; to allow an import, think first (docs/architecture.md).
var rules = []rule{
	// What everything rests on.
	{dir: "internal/fault", duty: "kinds, reasons and next steps of errors", pure: true},
	{dir: "internal/cluster", duty: "the nouns: identifiers, slot arithmetic, states and their moves, rules of names", pure: true,
		allow: []string{"internal/fault"}},
	{dir: "internal/clientaddr", duty: "which address a client comes from, and which networks admit it", pure: true,
		allow: []string{"internal/fault"}},
	{dir: "internal/alloc", duty: "chooses devices on one agent", pure: true, allow: []string{"internal/cluster", "internal/fault"}},
	{dir: "internal/scheduler", duty: "decides which session runs where, and why the others wait", pure: true,
		allow: []string{"internal/alloc", "internal/cluster", "internal/fault"}},
	{dir: "internal/scheduler/quota", duty: "what levels of hierarchical quotas allow, lend and keep", pure: true,
		allow: []string{"internal/cluster"}},
	{dir: "internal/scheduler/option", duty: "reads the options of the scheduler's policies", pure: true, allow: []string{"internal/fault"}},
	{dir: "internal/scheduler/fairshare", duty: "turns what owners used into shares", pure: true,
		allow: []string{"internal/cluster", "internal/scheduler/option"}},
	{dir: "internal/scheduler/packing", duty: "prices a node for a request by what the placement leaves", pure: true,
		allow: []string{"internal/fault"}},
	{dir: "internal/scheduler/sim", duty: "runs the scheduler on workloads in virtual time",
		allow: []string{"internal/scheduler", "internal/alloc", "internal/cluster", "internal/fault"}},
	{dir: "internal/chassis", duty: "process frame: services, order of start and stop, logs, health, metrics, configuration",
		allow: []string{"internal/clientaddr", "internal/fault"}},
	{dir: "internal/diskspace", duty: "how full a file system is, and a reserve of it", allow: []string{"internal/chassis"}},
	{dir: "internal/certs", duty: "certificates of servers: from files, generated or by ACME",
		allow: []string{"internal/chassis", "internal/fault"}},
	{dir: "internal/embedded", duty: "PostgreSQL, etcd and Redis for a cluster that was given none",
		allow: []string{"internal/chassis", "internal/fault"}},
	{dir: "internal/wire/node", duty: "messages between manager and agent", allow: []string{"internal/fault"}},
	{dir: "internal/wire/proxy", duty: "messages between manager and app proxy",
		allow: []string{"internal/clientaddr", "internal/cluster"}},
	{dir: "internal/wire/run", duty: "protocol between agent and runner", allow: []string{"internal/fault"}},
	{dir: "internal/wire/storage", duty: "messages between manager and storage proxy"},
	{dir: "internal/wire/tunnel", duty: "opens a connection to what listens inside a kernel",
		allow: []string{"internal/fault", "internal/wire/run"}},
	{dir: "internal/membership", duty: "a process's key and certificate in the cluster, and their renewal",
		allow: []string{"internal/wire", "internal/chassis", "internal/fault"}},
	{dir: "internal/membership/membershiptest", duty: "the agent port of a manager, for tests of members", testOnly: true,
		allow: []string{"internal/membership", "internal/manager/link/agent", "internal/manager/link/ca", "internal/chassis"}},

	// The manager: the role, its nouns, what they share, its connections, its APIs.
	{dir: "internal/manager", duty: "the role: wires stores, nouns, links, loops and APIs",
		allow: []string{"internal/certs", "internal/chassis", "internal/clientaddr", "internal/cluster", "internal/fault", "internal/wire/proxy",
			"internal/wire/run", "internal/wire/storage"}},
	{dir: "internal/manager/nouns", duty: "makes the use cases of all nouns and joins them",
		allow: []string{"internal/manager/audit", "internal/manager/authz", "internal/manager/app", "internal/manager/folder",
			"internal/manager/idle",
			"internal/manager/image",
			"internal/manager/login", "internal/manager/metric",
			"internal/manager/node", "internal/manager/notice", "internal/manager/operation", "internal/manager/operation/callback",
			"internal/manager/resource", "internal/manager/seal", "internal/manager/session", "internal/manager/session/template",
			"internal/manager/store",
			"internal/manager/tenancy", "internal/manager/usage", "internal/wire/proxy"}},
	{dir: "internal/manager/login", duty: "who is logged in by password: records in Redis or memory, found by a token",
		allow: []string{"internal/cluster", "internal/fault"}},
	{dir: "internal/manager/usage", duty: "the usage ledger: what was used, by whom and at what price",
		allow: []string{"internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz", "internal/manager/store"}},
	{dir: "internal/manager/metric", duty: "the history of use: records minutes of kernels and agents, and tells them",
		allow: []string{"internal/chassis", "internal/cluster", "internal/fault", "internal/manager/authz", "internal/manager/node",
			"internal/manager/reconcile", "internal/manager/session", "internal/manager/store", "internal/wire/node"}},
	{dir: "internal/manager/metric/external", duty: "reads the history of use from a Prometheus of the operator's",
		allow: []string{"internal/fault", "internal/manager/metric"}},
	{dir: "internal/manager/audit", duty: "the record of what was done to the cluster and what was denied",
		allow: []string{"internal/clientaddr", "internal/fault", "internal/manager/authz", "internal/manager/store"}},
	{dir: "internal/manager/audit/syslog", duty: "sends the audit log to a syslog receiver",
		allow: []string{"internal/fault", "internal/manager/audit", "internal/manager/reconcile", "internal/manager/store"}},
	{dir: "internal/manager/tenancy", duty: "domains, projects, users, keypairs and their policies; who a caller is",
		allow: []string{"internal/manager/tenancy/password",
			"internal/clientaddr", "internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz",
			"internal/manager/login", "internal/manager/recent", "internal/manager/reconcile",
			"internal/manager/seal", "internal/manager/store"}},
	{dir: "internal/manager/tenancy/otp", duty: "one-time passwords as a second factor of logins, and recovery codes",
		allow: []string{"internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz", "internal/manager/seal",
			"internal/manager/store", "internal/manager/tenancy"}},
	{dir: "internal/manager/mail", duty: "sends plain e-mails by SMTP", allow: []string{"internal/chassis", "internal/fault"}},
	{dir: "internal/manager/tenancy/letter", duty: "what e-mails let their readers do once: new passwords, invitations",
		allow: []string{"internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz", "internal/manager/seal",
			"internal/manager/store", "internal/manager/tenancy"}},
	{dir: "internal/manager/tenancy/identity", duty: "what people of identity providers may become: accounts, projects, roles",
		allow: []string{"internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz", "internal/manager/store",
			"internal/manager/tenancy"}},
	{dir: "internal/manager/tenancy/openid", duty: "logins at identity providers by OpenID Connect, and with tokens that they signed",
		allow: []string{"internal/chassis", "internal/fault", "internal/manager/seal", "internal/manager/store", "internal/manager/tenancy",
			"internal/manager/tenancy/identity"}},
	{dir: "internal/manager/tenancy/passkey", duty: "logins with passkeys (WebAuthn)",
		allow: []string{"internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz", "internal/manager/seal",
			"internal/manager/store", "internal/manager/tenancy"}},
	{dir: "internal/manager/ldap", duty: "asks an LDAP directory who its people are, and whether a password is theirs",
		allow: []string{"internal/chassis", "internal/fault"}},
	{dir: "internal/manager/ldap/ldaptest", duty: "OpenLDAP's server with people and groups", testOnly: true,
		allow: []string{"internal/chassis", "internal/manager/ldap"}},
	{dir: "internal/manager/scim", duty: "the messages of SCIM 2.0: users, groups, patches, filters, errors", pure: true},
	{dir: "internal/manager/tenancy/directory", duty: "people of an LDAP directory: logins, and syncs with the users here",
		allow: []string{"internal/chassis", "internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz",
			"internal/manager/ldap", "internal/manager/reconcile", "internal/manager/seal", "internal/manager/store",
			"internal/manager/tenancy"}},
	{dir: "internal/manager/tenancy/provision", duty: "what identity providers say by SCIM, and the accounts of it",
		allow: []string{"internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz", "internal/manager/reconcile",
			"internal/manager/scim", "internal/manager/store", "internal/manager/tenancy/identity"}},
	{dir: "internal/manager/httpapi/scim", duty: "requests of SCIM 2.0",
		allow: []string{"internal/fault", "internal/manager/authz", "internal/manager/httpapi/route", "internal/manager/scim",
			"internal/manager/tenancy/provision"}},
	{dir: "internal/manager/tenancy/plan", duty: "tenancies as files, and what has to change for one to be true",
		allow: []string{"internal/cluster"}},
	{dir: "internal/manager/tenancy/apply", duty: "reads tenancies for plans, and carries plans out by the nouns",
		allow: []string{"internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz", "internal/manager/resource",
			"internal/manager/seal", "internal/manager/store", "internal/manager/tenancy", "internal/manager/tenancy/plan"}},
	{dir: "internal/manager/tenancy/password", duty: "which passwords are good enough", pure: true, allow: []string{"internal/fault"}},
	{dir: "internal/manager/tenancy/token", duty: "API tokens: secrets with a scope and an end that stand for keypairs",
		allow: []string{"internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz", "internal/manager/recent",
			"internal/manager/seal", "internal/manager/store", "internal/manager/tenancy"}},
	{dir: "internal/manager/tenancy/purge", duty: "forgets users, projects and domains with all that they own",
		allow: []string{"internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz", "internal/manager/reconcile",
			"internal/manager/session", "internal/manager/store", "internal/manager/tenancy", "internal/manager/tenancy/plan"}},
	{dir: "internal/manager/resource", duty: "resource groups, slots and presets",
		allow: []string{"internal/alloc", "internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz",
			"internal/manager/resource/limit", "internal/manager/seal",
			"internal/manager/store", "internal/manager/tenancy", "internal/scheduler"}},
	{dir: "internal/manager/resource/limit", duty: "reads the limits of owners and what they hold",
		allow: []string{"internal/cluster", "internal/manager/store", "internal/scheduler"}},
	{dir: "internal/manager/image", duty: "the catalogue of images: references, aliases, labels, where they are, for whom",
		allow: []string{"internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz", "internal/manager/reconcile",
			"internal/manager/store"}},
	{dir: "internal/manager/node", duty: "agents: what administrators change, what agents report, what they should do",
		allow: []string{"internal/alloc", "internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz",
			"internal/manager/image", "internal/manager/reconcile", "internal/manager/seal", "internal/manager/store",
			"internal/manager/tenancy"}},
	{dir: "internal/manager/folder", duty: "folders: names, rights, shares, quotas, and the loop that has proxies make them true",
		allow: []string{"internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz", "internal/manager/reconcile",
			"internal/manager/store", "internal/manager/tenancy", "internal/wire/storage"}},
	{dir: "internal/manager/session", duty: "sessions and kernels: use cases, waits, events, the way to runners",
		allow: []string{"internal/alloc", "internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz",
			"internal/manager/folder", "internal/manager/image", "internal/manager/recent", "internal/manager/reconcile",
			"internal/manager/resource", "internal/manager/store", "internal/manager/tenancy", "internal/scheduler", "internal/wire/node"}},
	{dir: "internal/manager/session/request", duty: "reads and checks what the creator of a session asks for",
		allow: []string{"internal/cluster", "internal/fault", "internal/manager/folder", "internal/manager/image",
			"internal/manager/operation/callback", "internal/manager/store/dbgen"}},
	{dir: "internal/manager/session/template", duty: "templates that sessions are started from: documents, who may see and change them",
		allow: []string{"internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz",
			"internal/manager/session/request", "internal/manager/store", "internal/manager/tenancy"}},
	{dir: "internal/manager/session/scheduling", duty: "places waiting sessions: memory of the cluster, commits, explanations, accounts",
		allow: []string{"internal/alloc", "internal/chassis", "internal/cluster", "internal/fault", "internal/manager/reconcile",
			"internal/manager/resource/limit", "internal/manager/session", "internal/manager/store", "internal/scheduler"}},
	{dir: "internal/manager/app", duty: "starts apps, publishes circuits, decides who may visit",
		allow: []string{"internal/clientaddr", "internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz",
			"internal/manager/session",
			"internal/manager/store", "internal/wire/proxy", "internal/wire/run", "internal/wire/tunnel"}},
	{dir: "internal/manager/idle", duty: "idle checks: checkers, reports, keeping alive, and the loop that ends idle sessions",
		allow: []string{"internal/chassis", "internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz",
			"internal/manager/reconcile",
			"internal/manager/session", "internal/manager/store", "internal/manager/tenancy"}},
	{dir: "internal/manager/idle/rule", duty: "decides which sessions are idle", pure: true, allow: []string{"internal/cluster"}},
	{dir: "internal/manager/operation", duty: "announcement, freezing, reported errors, background tasks, the doctor's comparison of rows",
		allow: []string{"internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz", "internal/manager/store"}},
	{dir: "internal/manager/notice", duty: "tells users by e-mail and webhook what happened to what is theirs",
		allow: []string{"internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz",
			"internal/manager/operation/callback", "internal/manager/reconcile", "internal/manager/seal", "internal/manager/store"}},
	{dir: "internal/manager/notice/rule", duty: "decides which events become notices, for whom, and when they are sent again", pure: true,
		allow: []string{"internal/cluster"}},
	{dir: "internal/manager/operation/callback", duty: "delivers callbacks of sessions over HTTP",
		allow: []string{"internal/fault", "internal/manager/store"}},
	{dir: "internal/manager/authz", duty: "who may do what", pure: true,
		allow: []string{"internal/clientaddr", "internal/cluster", "internal/fault"}},
	{dir: "internal/manager/authztest", duty: "every method of every noun, called as everybody", testOnly: true, allow: []string{"internal"}},
	{dir: "internal/manager/seal", duty: "sealing of stored secrets, hashing of passwords", allow: []string{"internal/fault"}},
	{dir: "internal/manager/recent", duty: "remembers answers that every request needs for a moment"},
	{dir: "internal/manager/live", duty: "live statistics in Redis",
		allow: []string{"internal/cluster", "internal/manager/idle/rule", "internal/wire/node"}},
	{dir: "internal/manager/store", duty: "the only way to PostgreSQL: pool, transactions, guarded moves, hints",
		allow: []string{"internal/cluster", "internal/fault"}},
	{dir: "internal/manager/store/dbgen", duty: "queries that sqlc generates",
		allow: []string{"internal/cluster", "internal/manager/store/dbtype"}},
	{dir: "internal/manager/store/dbtype", duty: "Go types of jsonb columns"},
	{dir: "internal/manager/store/facts", duty: "where tables hold what the rules of authz look at",
		allow: []string{"internal/manager/authz"}},
	{dir: "internal/manager/store/feed", duty: "follows what changes in tables",
		allow: []string{"internal/chassis", "internal/manager/store"}},
	{dir: "internal/manager/store/list", duty: "lists page by page: the filter and order language, compiled to SQL",
		allow: []string{"internal/cluster", "internal/fault"}},
	{dir: "internal/manager/store/storetest", duty: "a migrated database of its own for every test", testOnly: true,
		allow: []string{"internal/manager/store"}},
	{dir: "internal/manager/managertest", duty: "use cases on a database of their own, with sessions in any state", testOnly: true,
		allow: []string{"internal/cluster", "internal/manager", "internal/manager/authz", "internal/manager/nouns",
			"internal/manager/reconcile", "internal/manager/seal", "internal/manager/session", "internal/manager/session/request",
			"internal/manager/store", "internal/manager/tenancy"}},
	{dir: "internal/manager/reconcile", duty: "elects the leader and runs the control loops that nouns bring",
		allow: []string{"internal/chassis", "internal/fault", "internal/manager/store"}},
	{dir: "internal/manager/link/ca", duty: "the cluster's certificate authority and join tokens",
		allow: []string{"internal/chassis", "internal/cluster", "internal/fault", "internal/wire/node", "internal/wire/proxy"}},
	{dir: "internal/manager/link/h2", duty: "HTTP/2 with the roles of client and server reversed"},
	{dir: "internal/manager/link/announce", duty: "announcements in etcd, and the table of those of others",
		allow: []string{"internal/chassis"}},
	{dir: "internal/manager/link/agent", duty: "the connections of agents",
		allow: []string{"internal/chassis", "internal/cluster", "internal/fault", "internal/manager/link/ca", "internal/manager/link/h2",
			"internal/wire/node", "internal/wire/proxy", "internal/wire/run"}},
	{dir: "internal/manager/link/peer", duty: "the connections of managers to each other: relays to the one that holds an agent",
		allow: []string{"internal/chassis", "internal/cluster", "internal/fault", "internal/manager/link/agent",
			"internal/manager/link/announce", "internal/manager/link/h2", "internal/wire/node", "internal/wire/run"}},
	{dir: "internal/manager/link/proxy", duty: "the connections of app proxies",
		allow: []string{"internal/chassis", "internal/fault", "internal/manager/app", "internal/manager/link/h2", "internal/wire/node",
			"internal/wire/proxy", "internal/wire/run"}},
	{dir: "internal/manager/link/storage", duty: "the way to storage proxies",
		allow: []string{"internal/chassis", "internal/fault", "internal/manager/link/announce", "internal/wire/storage"}},
	{dir: "internal/manager/httpapi", duty: "REST and streams of the wire",
		allow: []string{"api", "api/admin", "api/template", "internal/clientaddr", "internal/cluster", "internal/fault", "internal/manager/app",
			"internal/manager/audit", "internal/manager/authz",
			"internal/manager/folder", "internal/manager/idle", "internal/manager/idle/rule", "internal/manager/image",
			"internal/manager/metric", "internal/manager/node", "internal/manager/notice", "internal/manager/nouns",
			"internal/manager/operation", "internal/manager/resource", "internal/manager/scim", "internal/manager/seal",
			"internal/manager/session", "internal/manager/session/request",
			"internal/manager/session/template", "internal/manager/tenancy", "internal/manager/usage", "internal/wire/run"}},
	{dir: "internal/manager/httpapi/route", duty: "what the parts of httpapi say of their routes, and how they see a request",
		allow: []string{"api", "internal/manager/authz", "internal/manager/httpapi/params"}},
	{dir: "internal/manager/httpapi/credentials", duty: "requests about how callers prove who they are",
		allow: []string{"api", "internal/cluster", "internal/manager/authz", "internal/manager/httpapi/params", "internal/manager/httpapi/route",
			"internal/manager/seal", "internal/manager/tenancy"}},
	{dir: "internal/manager/httpapi/device", duty: "requests about which devices sessions hold and use",
		allow: []string{"api", "internal/cluster", "internal/manager/httpapi/route", "internal/manager/session"}},
	{dir: "internal/manager/httpapi/notice", duty: "requests about notices by e-mail and webhook",
		allow: []string{"api", "internal/manager/httpapi/route", "internal/manager/notice"}},
	{dir: "internal/manager/httpapi/administration", duty: "requests of those who run a cluster",
		allow: []string{"api", "internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz",
			"internal/manager/folder", "internal/manager/httpapi/params", "internal/manager/httpapi/route", "internal/manager/image",
			"internal/manager/metric", "internal/manager/node", "internal/manager/operation", "internal/manager/resource",
			"internal/manager/seal", "internal/manager/session", "internal/manager/tenancy", "internal/manager/tenancy/apply",
			"internal/manager/tenancy/plan", "internal/manager/tenancy/purge", "internal/manager/usage"}},
	{dir: "internal/manager/httpapi/params", duty: "reads the parameters of a request under all the names that clients have for them",
		allow: []string{"internal/cluster", "internal/fault"}},
	{dir: "internal/manager/httpapi/throttle", duty: "bounds what callers may do at one time and in a time",
		allow: []string{"internal/clientaddr", "internal/cluster", "internal/fault", "internal/manager/authz"}},
	{dir: "internal/manager/httpapi/signature", duty: "reads and verifies signatures of requests, and refuses those that come again",
		allow: []string{"internal/clientaddr", "internal/cluster", "internal/fault"}},
	{dir: "internal/manager/graphapi", duty: "GraphQL of the wire: decodes, resolves, encodes",
		allow: []string{"api", "internal/cluster", "internal/fault", "internal/manager/audit", "internal/manager/authz",
			"internal/manager/folder",
			"internal/manager/idle", "internal/manager/image", "internal/manager/node", "internal/manager/nouns",
			"internal/manager/resource", "internal/manager/seal", "internal/manager/session", "internal/manager/store/list",
			"internal/manager/tenancy", "internal/wire/node", "internal/wire/tunnel"}},
	{dir: "internal/manager/graphapi/cost", duty: "weighs GraphQL documents before anything else looks at them"},
	{dir: "internal/manager/graphapi/gqlexec", duty: "execution of GraphQL that gqlgen generates",
		allow: []string{"internal/manager/graphapi/model"}},
	{dir: "internal/manager/graphapi/model", duty: "types of the GraphQL schema that gqlgen generates"},

	// The agent.
	{dir: "internal/agent", duty: "the role on a worker host: wires everything below it",
		allow: []string{"internal/chassis", "internal/cluster", "internal/diskspace", "internal/fault"}},
	{dir: "internal/agent/confine", duty: "control groups that keep a session's processes apart from the runner",
		allow: []string{"internal/agent/runtime/hoststats", "internal/fault"}},
	{dir: "internal/agent/data", duty: "data port: the way of app proxies to what listens inside kernels",
		allow: []string{"internal/agent/keeper", "internal/agent/runners", "internal/chassis", "internal/cluster", "internal/fault",
			"internal/membership", "internal/wire/node", "internal/wire/proxy", "internal/wire/run", "internal/wire/tunnel"}},
	{dir: "internal/agent/device", duty: "the contract of a device driver, and the inventory of an agent's host",
		allow: []string{"internal/agent/runtime", "internal/alloc", "internal/cluster", "internal/fault"}},
	{dir: "internal/agent/device/cdi", duty: "devices of any vendor with a specification of the Container Device Interface",
		allow: []string{"internal/agent/device", "internal/agent/device/pci", "internal/agent/runtime", "internal/alloc", "internal/cluster",
			"internal/fault"}},
	{dir: "internal/agent/device/conformance", duty: "tests that every device driver passes", testOnly: true,
		allow: []string{"internal/agent/device", "internal/alloc", "internal/cluster"}},
	{dir: "internal/agent/device/cuda", duty: "NVIDIA GPUs: cards, shares of cards, instances of MIG",
		allow: []string{"internal/agent/device", "internal/agent/runtime", "internal/alloc", "internal/cluster", "internal/fault"}},
	{dir: "internal/agent/device/cuda/cudatest", duty: "hosts with NVIDIA GPUs that tests make up", testOnly: true,
		allow: []string{"internal/agent/device/cuda/nvmlwire", "internal/alloc"}},
	{dir: "internal/agent/device/cuda/mps", duty: "NVIDIA's daemons for kernels that share cards",
		allow: []string{"internal/agent/device/cuda", "internal/agent/runtime", "internal/cluster", "internal/fault"}},
	{dir: "internal/agent/device/cuda/nvmlclient", duty: "starts and asks the helper process for NVIDIA GPUs",
		allow: []string{"internal/agent/device/cuda/nvmlwire", "internal/chassis", "internal/fault"}},
	{dir: "internal/agent/device/cuda/nvmlwire", duty: "what the agent and its helper for NVIDIA GPUs say to each other", stdOnly: true},
	{dir: "internal/agent/device/cpu", duty: "cores of the host and how busy it is",
		allow: []string{"internal/agent/device", "internal/alloc", "internal/cluster", "internal/fault", "internal/wire/node"}},
	{dir: "internal/agent/device/devicetest", duty: "device drivers of a host that tests make up", testOnly: true,
		allow: []string{"internal/agent/device", "internal/agent/device/cpu", "internal/agent/device/mem"}},
	{dir: "internal/agent/device/mem", duty: "memory of the host and how much is used",
		allow: []string{"internal/agent/device", "internal/alloc", "internal/cluster", "internal/fault", "internal/wire/node"}},
	{dir: "internal/agent/device/mock", duty: "devices that a file describes",
		allow: []string{"internal/agent/device", "internal/agent/runtime", "internal/alloc", "internal/cluster", "internal/fault"}},
	{dir: "internal/agent/device/pci", duty: "where devices are attached: PCI addresses, NUMA nodes, bridges",
		allow: []string{"internal/alloc"}},
	{dir: "internal/agent/device/rocm", duty: "AMD GPUs, found and measured by the files of the kernel's drivers",
		allow: []string{"internal/agent/device", "internal/agent/device/pci", "internal/agent/runtime", "internal/alloc", "internal/cluster",
			"internal/fault"}},
	{dir: "internal/agent/diskguard", duty: "ends kernels that fill the host's disks, and says when these are low",
		allow: []string{"internal/agent/keeper", "internal/agent/runtime", "internal/agent/runtime/hoststats", "internal/chassis",
			"internal/cluster", "internal/diskspace"}},
	{dir: "internal/agent/host", duty: "the contract of where kernels have their files, folders and runners",
		allow: []string{"internal/agent/runtime", "internal/cluster", "internal/fault", "internal/wire/run"}},
	{dir: "internal/agent/host/conformance", duty: "tests that every host passes", testOnly: true,
		allow: []string{"internal/agent/host", "internal/agent/runtime", "internal/agent/runtime/fake", "internal/cluster",
			"internal/fault", "internal/wire/run"}},
	{dir: "internal/agent/host/fake", duty: "that place in memory, for tests of the keeper", testOnly: true,
		allow: []string{"internal/agent/host", "internal/agent/runtime", "internal/cluster", "internal/fault", "internal/wire/run"}},
	{dir: "internal/agent/host/local", duty: "that place on this machine",
		allow: []string{"internal/agent/confine", "internal/agent/host", "internal/agent/mount", "internal/agent/runners",
			"internal/agent/runtime", "internal/agent/scratch", "internal/cluster", "internal/fault", "internal/wire/run"}},
	{dir: "internal/agent/keeper", duty: "makes kernels as the manager wants them and reports what is true",
		allow: []string{"internal/agent/device", "internal/agent/host", "internal/agent/ledger", "internal/agent/network",
			"internal/agent/runtime", "internal/alloc", "internal/chassis", "internal/cluster", "internal/fault", "internal/wire/run"}},
	{dir: "internal/agent/ledger", duty: "records side effects before they are made", allow: []string{"internal/cluster", "internal/fault"}},
	{dir: "internal/agent/kernellog", duty: "finds in the log of the host's kernel what its operator should know"},
	{dir: "internal/agent/link", duty: "joins the manager and carries desired and observed state",
		allow: []string{"internal/agent/keeper", "internal/agent/ledger", "internal/agent/meter", "internal/alloc", "internal/chassis",
			"internal/cluster", "internal/fault", "internal/membership", "internal/wire/node", "internal/wire/proxy"}},
	{dir: "internal/agent/loopdisk", duty: "file systems of bounded size for kernels",
		allow: []string{"internal/chassis", "internal/diskspace"}},
	{dir: "internal/agent/meter", duty: "samples the use of host and kernels",
		allow: []string{"internal/agent/device", "internal/agent/keeper", "internal/agent/runtime", "internal/alloc", "internal/chassis",
			"internal/cluster", "internal/wire/node"}},
	{dir: "internal/agent/mount", duty: "puts folders where the engine can bind them",
		allow: []string{"internal/agent/host", "internal/agent/runtime", "internal/cluster", "internal/fault"}},
	{dir: "internal/agent/network", duty: "the network of an agent's sessions: bridge, addresses, rules of nftables, egress policies",
		allow: []string{"internal/agent/runtime", "internal/chassis", "internal/cluster", "internal/fault"}},
	{dir: "internal/agent/runners", duty: "reaches the runners inside containers",
		allow: []string{"internal/cluster", "internal/fault", "internal/wire/run", "internal/wire/tunnel"}},
	{dir: "internal/agent/runtime", duty: "the contract of a container engine", allow: []string{"internal/cluster", "internal/fault"}},
	{dir: "internal/agent/runtime/conformance", duty: "tests that every runtime passes", testOnly: true,
		allow: []string{"internal/agent/runtime", "internal/cluster", "internal/fault"}},
	{dir: "internal/agent/runtime/conformance/box", duty: "the program of images that tests build", testOnly: true},
	{dir: "internal/agent/runtime/docker", duty: "the runtime on a Docker engine",
		allow: []string{"internal/agent/runtime", "internal/agent/runtime/hoststats", "internal/cluster", "internal/fault"}},
	{dir: "internal/agent/runtime/fake", duty: "the runtime in memory, with faults",
		allow: []string{"internal/agent/runtime", "internal/cluster", "internal/fault", "internal/wire/run", "internal/wire/tunnel"}},
	{dir: "internal/agent/runtime/hoststats", duty: "use of one container from cgroups and /proc",
		allow: []string{"internal/agent/runtime", "internal/fault"}},
	{dir: "internal/agent/runtime/testimage", duty: "builds container images from nothing", testOnly: true},
	{dir: "internal/agent/scratch", duty: "directories and configuration files of kernels on the agent's disk",
		allow: []string{"internal/agent/host", "internal/agent/loopdisk", "internal/cluster", "internal/diskspace", "internal/fault",
			"internal/storage/volume/tree", "internal/wire/run"}},
	{dir: "internal/agent/stream", duty: "byte streams of kernels for the manager",
		allow: []string{"internal/agent/keeper", "internal/agent/runners", "internal/agent/runtime", "internal/cluster",
			"internal/fault", "internal/wire/node", "internal/wire/run"}},
	{dir: "internal/agent/wireguard", duty: "an encrypted tunnel to other agents", allow: []string{"internal/fault"}},

	// The storage proxy.
	{dir: "internal/storage", duty: "the role: volumes, their API for managers, the announcement in etcd",
		allow: []string{"internal/chassis", "internal/clientaddr", "internal/cluster", "internal/fault", "internal/wire/storage"}},
	{dir: "internal/storage/transfer", duty: "uploads and downloads of clients",
		allow: []string{"internal/chassis", "internal/clientaddr", "internal/storage/volume", "internal/cluster", "internal/fault",
			"internal/wire/storage"}},
	{dir: "internal/storage/task", duty: "work on volumes that takes long: clones, deletions, transfers, the reaper of trash",
		allow: []string{"internal/storage/volume", "internal/cluster", "internal/fault", "internal/wire/storage"}},
	{dir: "internal/storage/task/s3", duty: "copies between folders and object stores",
		allow: []string{"internal/cluster", "internal/fault", "internal/storage/volume", "internal/wire/storage"}},
	{dir: "internal/storage/volume", duty: "the contract of a file system that holds folders",
		allow: []string{"internal/cluster", "internal/fault"}},
	{dir: "internal/storage/volume/conformance", duty: "tests that every volume passes", testOnly: true,
		allow: []string{"internal/storage/volume", "internal/cluster", "internal/fault"}},
	{dir: "internal/storage/volume/memory", duty: "the volume in memory",
		allow: []string{"internal/cluster", "internal/fault", "internal/storage/volume"}},
	{dir: "internal/storage/volume/posix", duty: "the volume on any mounted file system",
		allow: []string{"internal/cluster", "internal/diskspace", "internal/fault", "internal/storage/volume", "internal/storage/volume/tree"}},
	{dir: "internal/storage/volume/cephfs", duty: "the volume on CephFS",
		allow: []string{"internal/cluster", "internal/fault", "internal/storage/volume", "internal/storage/volume/posix"}},
	{dir: "internal/storage/volume/xfs", duty: "the volume with project quotas of XFS",
		allow: []string{"internal/cluster", "internal/fault", "internal/storage/volume", "internal/storage/volume/posix"}},
	{dir: "internal/storage/volume/tree", duty: "counts, copies and removes trees of files",
		allow: []string{"internal/fault", "internal/storage/volume"}},

	// The app proxy.
	{dir: "internal/appproxy", duty: "the role that lets visitors reach apps inside sessions",
		allow: []string{"internal/membership", "internal/certs", "internal/chassis", "internal/clientaddr", "internal/cluster", "internal/fault",
			"internal/wire"}},
	{dir: "internal/appproxy/agents", duty: "connections to apps through the data ports of agents",
		allow: []string{"internal/appproxy/circuit", "internal/chassis", "internal/fault", "internal/membership", "internal/wire/node",
			"internal/wire/proxy", "internal/wire/tunnel"}},
	{dir: "internal/appproxy/circuit", duty: "decides who may pass",
		allow: []string{"internal/clientaddr", "internal/wire/proxy"}},
	{dir: "internal/appproxy/control", duty: "keeps the proxy's copy of the manager's circuits",
		allow: []string{"internal/appproxy/circuit", "internal/chassis", "internal/fault", "internal/membership", "internal/wire/proxy",
			"internal/wire/run"}},
	{dir: "internal/appproxy/forward", duty: "carries requests and connections to apps",
		allow: []string{"internal/appproxy/circuit", "internal/chassis", "internal/clientaddr", "internal/fault", "internal/wire/proxy",
			"internal/wire/tunnel"}},
	{dir: "internal/appproxy/front", duty: "pages and API of the proxy itself",
		allow: []string{"internal/appproxy/circuit", "internal/appproxy/control", "internal/chassis", "internal/fault",
			"internal/wire/proxy", "internal/wire/run", "internal/wire/tunnel"}},

	// PID 1 of every container.
	{dir: "internal/runner", duty: "executes cells, batches and apps as the session's user", stdOnly: true,
		allow: []string{"internal/wire/run", "internal/wire/tunnel", "internal/cluster", "internal/fault"}},
	{dir: "internal/runner/app", duty: "starts, watches and stops the apps of a session", stdOnly: true,
		allow: []string{"internal/fault", "internal/runner/proc", "internal/runner/recipe", "internal/wire/run"}},
	{dir: "internal/runner/cell", duty: "the contract between a run and what executes its code", stdOnly: true},
	{dir: "internal/runner/files", duty: "access to the home directory of the session's user", stdOnly: true,
		allow: []string{"internal/fault", "internal/runner/proc", "internal/wire/run"}},
	{dir: "internal/runner/jupyter", duty: "drives a Jupyter kernel", stdOnly: true,
		allow: []string{"internal/runner/cell", "internal/runner/output", "internal/runner/zmtp"}},
	{dir: "internal/runner/output", duty: "output of runs until its reader acknowledges it", stdOnly: true},
	{dir: "internal/runner/peer", duty: "names of the session's kernels, for programs in this one", stdOnly: true,
		allow: []string{"internal/fault", "internal/runner/proc", "internal/wire/run"}},
	{dir: "internal/runner/proc", duty: "starts, signals and reaps processes", stdOnly: true},
	{dir: "internal/runner/python", duty: "executes cells in a persistent Python interpreter", stdOnly: true,
		allow: []string{"internal/runner/cell", "internal/runner/jupyter", "internal/runner/output", "internal/runner/proc"}},
	{dir: "internal/runner/recipe", duty: "how code of a language is compiled and run, as data", stdOnly: true},
	{dir: "internal/runner/sshd", duty: "SSH server of a session", stdOnly: true,
		allow: []string{"internal/runner/proc", "internal/runner/recipe", "internal/wire/run", "internal/wire/tunnel"}},
	{dir: "internal/runner/terminal", duty: "shells that outlive the connection to them", stdOnly: true,
		allow: []string{"internal/fault", "internal/runner/proc"}},
	{dir: "internal/runner/webterm", duty: "the terminal for browsers", stdOnly: true,
		allow: []string{"internal/fault", "internal/runner/terminal", "internal/wire/run", "internal/wire/tunnel"}},
	{dir: "internal/runner/zmtp", duty: "connecting half of ZMTP 3.0", stdOnly: true},
	{dir: "internal/runnerbin", duty: "the runner inside the berth binary", allow: []string{"internal/fault"}},

	// The web server and the console.
	{dir: "web", duty: "the console inside the berth binary", stdOnly: true},
	{dir: "internal/webserver", duty: "the role of browsers: logins, requests passed to managers, files of web interfaces",
		allow: []string{"api", "api/login", "internal/certs", "internal/chassis", "internal/clientaddr", "internal/fault", "web"}},
	{dir: "internal/webserver/payload", duty: "bodies that clients encode", stdOnly: true},
	{dir: "internal/webserver/upstream", duty: "the way to managers: signs requests, finds one that answers",
		allow: []string{"api", "internal/fault"}},

	// Clients.
	{dir: "api", duty: "public types of the wire and the Go client", stdOnly: true, allow: []string{"api/unpack"}},
	{dir: "api/unpack", duty: "writes what hostile archives hold below a directory", stdOnly: true},
	{dir: "api/template", duty: "the part of the API about templates of sessions", stdOnly: true, allow: []string{"api"}},
	{dir: "api/notice", duty: "the part of the API about notices by e-mail and webhook, and for receivers of webhooks", stdOnly: true,
		allow: []string{"api"}},
	{dir: "api/device", duty: "the part of the API about devices: what agents have, what sessions hold and use", stdOnly: true,
		allow: []string{"api"}},
	{dir: "api/history", duty: "the part of the API about what sessions and agents used over time", stdOnly: true, allow: []string{"api"}},
	{dir: "api/admin", duty: "the part of the API that administrators use", stdOnly: true, allow: []string{"api"}},
	{dir: "api/credential", duty: "how callers prove who they are: API tokens, service accounts, one-time passwords", stdOnly: true,
		allow: []string{"api"}},
	{dir: "api/endpoint", duty: "addresses of managers, and which one a request is sent to", stdOnly: true},
	{dir: "api/follow", duty: "logs and executions that outlive a manager", stdOnly: true, allow: []string{"api"}},
	{dir: "api/pin", duty: "trusts servers by the fingerprint of their certificate authority", stdOnly: true},
	{dir: "api/transfer", duty: "moves files between this machine and folders", stdOnly: true, allow: []string{"api"}},
	{dir: "api/profile", duty: "what a client knows of several clusters: files of addresses and secrets, and which is in use", stdOnly: true},
	{dir: "api/login", duty: "opens and ends logins by password at a web server", stdOnly: true, allow: []string{"api"}},
	{dir: "internal/cli", duty: "client verbs of the command line", allow: []string{"api"}},
	{dir: "internal/cli/frame", duty: "what all client verbs share: cluster, errors, tables, progress", allow: []string{"api"}},
	{dir: "internal/cli/app", duty: "client verbs about apps", allow: []string{"api", "internal/cli/frame"}},
	{dir: "internal/cli/console", duty: "the console of a cluster: opens it, or serves it here with the apps of a remote cluster",
		allow: []string{"api", "api/login", "internal/cli/frame", "web"}},
	{dir: "internal/cli/device", duty: "client verbs that show devices: what hosts have, what sessions hold and use",
		allow: []string{"api", "internal/cli/frame"}},
	{dir: "internal/cli/folder", duty: "client verbs about folders", allow: []string{"api", "internal/cli/frame"}},
	{dir: "internal/cli/login", duty: "client verbs about logins by password, and about profiles of clusters",
		allow: []string{"api", "api/login", "internal/cli/frame"}},
	{dir: "internal/cli/notice", duty: "client verbs about notices by e-mail and webhook",
		allow: []string{"api", "api/notice", "internal/cli/frame"}},
	{dir: "internal/cli/mountflag", duty: "reads how mounts are written on the command line", allow: []string{"api"}},
	{dir: "internal/cli/ssh", duty: "client verbs that use SSH programs and editors",
		allow: []string{"api", "internal/cli/frame", "internal/cli/app"}},
	{dir: "internal/cli/template", duty: "client verbs about templates of sessions",
		allow: []string{"api", "api/template", "internal/cli/frame"}},
	{dir: "internal/cli/tenancy", duty: "client verbs of administrators: domains, projects, users, policies, limits, what was done and used",
		allow: []string{"api", "internal/cli/frame"}},

	// Programs.
	{dir: "internal/platform", duty: "puts roles together in one process: berth up, a role alone, the clusters of testkit",
		allow: []string{"api", "internal/agent", "internal/appproxy", "internal/chassis", "internal/cluster", "internal/diskspace",
			"internal/embedded", "internal/fault", "internal/manager", "internal/membership", "internal/runnerbin", "internal/storage",
			"internal/webserver", "internal/wire/proxy", "web"}},
	{dir: "internal/platform/doctor", duty: "looks for what should not be, on running and stopped clusters",
		allow: []string{"api/admin", "internal/platform", "internal/agent", "internal/appproxy", "internal/chassis", "internal/fault",
			"internal/storage"}},
	{dir: "cmd/berth", duty: "the one binary: commands, flags and output of roles; client verbs come from cli",
		allow: []string{"internal/agent/device", "internal/platform", "internal/appproxy", "internal/chassis", "internal/cli", "internal/cluster",
			"internal/fault", "internal/scheduler"}},
	{dir: "cmd/berth-runner", duty: "PID 1 of every container", stdOnly: true, allow: []string{"internal/runner"}},
	{dir: "scripts/leftout", duty: "lists the tests that left themselves out"},
	{dir: "scripts/modules", duty: "checks the licences of the modules that are shipped, and lists them"},
	{dir: "scripts/mutation", duty: "measures what the tests of a package notice"},
	{dir: "scripts/pack", duty: "prepares what the berth binary carries"},
	{dir: "scripts/testdb", duty: "one PostgreSQL server for a whole run of tests", testOnly: true,
		allow: []string{"internal/manager/store/storetest"}},
	{dir: "scripts/tstypes", duty: "writes the types of api as TypeScript, for the console"},

	// The helper for NVIDIA GPUs, which the agent starts and does not import.
	{dir: "internal/nvmlhelper", duty: "asks NVIDIA's library about the GPUs of a host, for the agent",
		allow: []string{"internal/agent/device/cuda/nvmlwire", "internal/alloc", "internal/fault"}},
	{dir: "cmd/berth-nvml", duty: "that helper as a program", allow: []string{"internal/nvmlhelper"}},

	// Tests alone.
	{dir: "internal/testkit", duty: "a whole cluster in one process, with faults", testOnly: true, allow: []string{"api", "internal"}},
	{dir: "internal/testkit/idp", duty: "an identity provider with real keys, which does wrong what a test asks for", testOnly: true},
	{dir: "internal/testkit/await", duty: "receives from channels with a deadline", testOnly: true},
	{dir: "internal/testkit/shape", duty: "compares JSON with what a description of an interface says of it", testOnly: true},
	{dir: "internal/testkit/load", duty: "asks a cluster all the time and counts what fails", testOnly: true},
	{dir: "internal/testkit/simulation", duty: "a whole cluster on simulated time, with faults that follow from a seed", testOnly: true,
		allow: []string{"internal"}},
	{dir: "internal/testkit/testserver", duty: "starts the servers of the module testservers", testOnly: true},
	{dir: "testservers/acme", duty: "an ACME authority in memory, a module of its own with s3", testOnly: true},
	{dir: "testservers/s3", duty: "an object store in memory", testOnly: true},
	{dir: "e2e", duty: "stories about the real binary and engine", testOnly: true, allow: []string{"api", "internal"}},
	{dir: "e2e/webdemo", duty: "an app for tests that shows what reaches it", testOnly: true},
	{dir: "bench", duty: "measurements beside a peer", testOnly: true, allow: []string{"api", "internal"}},
	{dir: ".", duty: "this test", testOnly: true},
}

// thirdPartyExceptions are modules that a stdOnly directory may use all the same.
var thirdPartyExceptions = map[string][]string{
	"api":        {"github.com/coder/websocket"},
	"api/follow": {"github.com/coder/websocket"},
	// What PID 1 of every container carries: the SSH server and the web terminal.
	"internal/runner": {"golang.org/x/sys", "golang.org/x/crypto", "github.com/pkg/sftp", "github.com/coder/websocket"},
}

// cgoModules need cgo, and the directories are the only ones that may use them, in files for builds with cgo alone. Everything else
// stays static.
var cgoModules = map[string]string{"github.com/NVIDIA/go-nvml": "internal/nvmlhelper"}

// impure are the standard packages that a pure package must not see.
var impure = []string{"net", "os", "io/ioutil", "database", "math/rand", "crypto/rand", "syscall", "log", "plugin", "net/http"}

// impureCalls are functions of allowed packages that a pure package must not call.
var impureCalls = []string{"time.Now", "time.Since", "time.Until", "time.After", "time.AfterFunc", "time.Tick", "time.NewTimer",
	"time.NewTicker", "time.Sleep"}

// forbiddenNames say nothing about what is inside.
var forbiddenNames = []string{"util", "utils", "common", "helper", "helpers", "types", "misc", "base", "shared"}

// source is one parsed file.
type source struct {
	path      string // slash-separated, relative to the module
	dir       string
	test      bool
	generated bool
	text      []byte
	file      *ast.File
}

func (s source) lines() int { return bytes.Count(s.text, []byte("\n")) }

func (s source) testSide() bool { return s.test || ruleOf(s.dir).testOnly }

// ruleOf returns the rule of a package; its dir is "" when there is none.
func ruleOf(dir string) rule {
	for _, r := range rules {
		if r.dir == dir {
			return r
		}
	}
	return rule{}
}

// exceptions returns the modules that a stdOnly package may use.
func exceptions(dir string) []string {
	var out []string
	for parent, modules := range thirdPartyExceptions {
		if below(dir, parent) {
			out = append(out, modules...)
		}
	}
	return out
}

// below reports whether dir is parent or lies inside it; "." is only itself.
func below(dir, parent string) bool {
	return dir == parent || parent != "." && strings.HasPrefix(dir, parent+"/")
}

func parseAll(t *testing.T) (*token.FileSet, []source) {
	t.Helper()
	set := token.NewFileSet()
	var out []source
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			base := d.Name()
			if name != "." && (strings.HasPrefix(base, ".") || slices.Contains([]string{"testdata", "node_modules", "vendor", "bin"}, base)) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		slash := filepath.ToSlash(name)
		out = append(out, source{
			path: slash, dir: path.Dir(slash), test: strings.HasSuffix(name, "_test.go"),
			generated: ast.IsGenerated(f), text: text, file: f,
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return set, out
}

func imports(s source) []string {
	var out []string
	for _, i := range s.file.Imports {
		out = append(out, strings.Trim(i.Path.Value, `"`))
	}
	return out
}

func TestArchitecture(t *testing.T) {
	t.Parallel()
	set, sources := parseAll(t)
	var offences []string
	offend := func(where, format string, args ...any) {
		offences = append(offences, where+": "+fmt.Sprintf(format, args...))
	}
	lines, documented := map[string]int{}, map[string]bool{}
	for _, s := range sources {
		documented[s.dir] = documented[s.dir] || hasPackageComment(s)
		r := ruleOf(s.dir)
		if r.dir == "" {
			offend(s.dir, "no rule of its own: add the package with its duty to the table in arch_test.go")
			continue
		}
		if s.generated {
			continue
		}
		if !s.test {
			lines[s.dir] += s.lines()
		}
		if s.lines() > maxFileLines {
			offend(s.path, "%d lines, the budget is %d: split it by noun or verb", s.lines(), maxFileLines)
		}
		checkColumns(s, offend)
		if name := strings.TrimSuffix(s.file.Name.Name, "_test"); slices.Contains(forbiddenNames, name) {
			offend(s.path, "package %s: name it after what it is for", name)
		}
		checkImports(s, r, offend)
		checkCalls(set, s, r, offend)
	}
	for dir, n := range lines {
		if n > maxPackageLines {
			offend(dir, "%d lines, the budget of a package is %d", n, maxPackageLines)
		}
	}
	for dir, ok := range documented {
		if !ok {
			offend(dir, "no package comment: say what it is, what it is not, and who calls it")
		}
	}
	slices.Sort(offences)
	for _, o := range slices.Compact(offences) {
		t.Error(o)
	}
}

func hasPackageComment(s source) bool {
	doc := s.file.Doc
	return doc != nil && (strings.HasPrefix(doc.Text(), "Package ") || strings.HasPrefix(doc.Text(), "Command "))
}

func checkColumns(s source, offend func(string, string, ...any)) {
	n := 0
	for line := range bytes.Lines(s.text) {
		n++
		if columns := utf8.RuneCount(bytes.TrimRight(line, "\n")); columns > maxColumns {
			offend(fmt.Sprintf("%s:%d", s.path, n), "%d columns, the budget is %d: wrap the line", columns, maxColumns)
		}
	}
}

func checkImports(s source, r rule, offend func(string, string, ...any)) {
	for _, imp := range imports(s) {
		for cgo, dir := range cgoModules {
			if below(imp, cgo) && s.dir != dir {
				offend(s.path, "%s needs cgo, only %s may import it", cgo, dir)
			}
			if below(imp, cgo) && !bytes.HasPrefix(s.text, []byte("//go:build cgo\n")) {
				offend(s.path, "%s needs cgo: begin the file with //go:build cgo", cgo)
			}
		}
		own, ours := strings.CutPrefix(imp, module)
		switch {
		case ours:
			target := ruleOf(own)
			if target.testOnly && !s.testSide() {
				offend(s.path, "%s is for tests only", own)
			}
			if s.testSide() || below(own, r.dir) {
				continue // tests look from outside and may build what they need
			}
			if !slices.ContainsFunc(r.allow, func(a string) bool { return below(own, a) }) {
				offend(s.path, "%s must not import %s", r.dir, own)
			}
			if r.dir != own && strings.HasPrefix(own, "cmd/") {
				offend(s.path, "nothing imports %s", own)
			}
		case !strings.Contains(strings.SplitN(imp, "/", 2)[0], "."):
			if r.pure && !s.test && imp != "net/netip" && slices.ContainsFunc(impure, func(p string) bool { return below(imp, p) }) {
				offend(s.path, "%s is pure and must not import %s", r.dir, imp)
			}
		case (r.stdOnly || r.pure) && !s.test:
			if !slices.ContainsFunc(exceptions(r.dir), func(p string) bool { return below(imp, p) }) {
				offend(s.path, "%s uses the standard library only, not %s", r.dir, imp)
			}
		}
	}
}

func checkCalls(set *token.FileSet, s source, r rule, offend func(string, string, ...any)) {
	if s.generated || !s.test && !r.pure {
		return
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		call := pkg.Name + "." + sel.Sel.Name
		where := fmt.Sprintf("%s:%d", s.path, set.Position(sel.Pos()).Line)
		if s.test && call == "time.Sleep" {
			offend(where, "tests do not sleep: wait for a condition, or advance a clock")
		}
		if !s.test && r.pure && slices.Contains(impureCalls, call) {
			offend(where, "%s is pure: the time is an input, not %s", r.dir, call)
		}
		return true
	})
}

// TestRulesAreUsed keeps the table free of what nothing needs: rules without a package, and allowed imports that nobody makes.
func TestRulesAreUsed(t *testing.T) {
	t.Parallel()
	_, sources := parseAll(t)
	for i, r := range rules {
		if r.duty == "" {
			t.Errorf("%s: say in one line what the package is for", r.dir)
		}
		if slices.ContainsFunc(rules[:i], func(o rule) bool { return o.dir == r.dir }) {
			t.Errorf("%s has two rules", r.dir)
		}
		used, exists := map[string]bool{}, false
		for _, s := range sources {
			if s.dir != r.dir {
				continue
			}
			exists = true
			for _, imp := range imports(s) {
				own, ours := strings.CutPrefix(imp, module)
				for _, a := range r.allow {
					if ours && (!s.test || r.testOnly) && below(own, a) {
						used[a] = true
					}
				}
			}
		}
		if !exists {
			t.Errorf("%s: there is no such package, remove its rule", r.dir)
			continue
		}
		for _, a := range r.allow {
			if !used[a] {
				t.Errorf("%s: it does not import %s, take that out of its rule", r.dir, a)
			}
		}
	}
}
