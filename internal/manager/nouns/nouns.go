// Package nouns makes the use cases of all nouns of the manager and joins them: it makes one service of each noun and hands every
// service those that it uses. It holds no rules. The manager role and the tests call New; httpapi and graphapi get the Set.
package nouns

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"time"

	"berth.dev/berth/internal/manager/app"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/idle"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/login"
	"berth.dev/berth/internal/manager/metric"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/notice"
	"berth.dev/berth/internal/manager/operation"
	"berth.dev/berth/internal/manager/operation/callback"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/template"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/apply"
	"berth.dev/berth/internal/manager/tenancy/directory"
	"berth.dev/berth/internal/manager/tenancy/identity"
	"berth.dev/berth/internal/manager/tenancy/letter"
	"berth.dev/berth/internal/manager/tenancy/openid"
	"berth.dev/berth/internal/manager/tenancy/otp"
	"berth.dev/berth/internal/manager/tenancy/passkey"
	"berth.dev/berth/internal/manager/tenancy/provision"
	"berth.dev/berth/internal/manager/tenancy/purge"
	"berth.dev/berth/internal/manager/tenancy/token"
	"berth.dev/berth/internal/manager/usage"
	"berth.dev/berth/internal/wire/proxy"
)

// Set is the use cases of one manager.
type Set struct {
	Audit      *audit.Service
	Tenancy    *tenancy.Service
	Tokens     *token.Service
	OTP        *otp.Service
	Letters    *letter.Service
	Directory  *directory.Service
	Provision  *provision.Service
	Identities *identity.Service
	OpenID     *openid.Service
	Passkeys   *passkey.Service
	Resources  *resource.Service
	Images     *image.Service
	Nodes      *node.Service
	Reports    *node.Reports
	Folders    *folder.Service
	Sessions   *session.Service
	Templates  *template.Service
	Apps       *app.Service
	Idle       *idle.Service
	Operations *operation.Service
	Notices    *notice.Service
	Usage      *usage.Service
	Metrics    *metric.Service
	Purges     *purge.Service
	Tenancies  *apply.Service
}

// LiveStats reads what agents measured most recently of themselves and of kernels.
type LiveStats interface {
	node.LiveStats
	session.LiveStats
}

// Deps are what the nouns work with. Store, Seal, Vault and Log are required; Clock, IDs, Random and PasswordCost have defaults. Of the
// rest each may be nil: what needs it is Unavailable or unknown then.
type Deps struct {
	Store *store.Store
	Seal  *seal.Key
	// Vault keeps the keys of tickets and grants of apps; ClusterID is the issuer of grants.
	Vault     app.Vault
	ClusterID string
	// Revoked tells the app proxies whose certificates ended lately.
	Revoked func(context.Context) ([]proxy.Revocation, error)
	Clock   func() time.Time
	IDs     func() string
	Random  io.Reader
	// PasswordCost is what hashing a password takes.
	PasswordCost seal.Cost
	// Streams is the way to agents' byte streams, Proxies that to storage proxies.
	Streams session.Streams
	Proxies folder.Proxies
	Live    LiveStats
	// Usage is what was measured of kernels over time.
	Usage idle.Usage
	// History tells the history of use in place of our tables; nil: they do.
	History   metric.Source
	Explainer session.Explainer
	Callbacks callback.Policy
	// Logins keeps who is logged in by password; nil keeps it in this process.
	Logins      login.Keeper
	LoginPolicy tenancy.LoginPolicy
	// SecondFactors are what logins ask for beside passwords and one-time passwords.
	SecondFactors []tenancy.SecondFactor
	// Mailer sends e-mails, Link is where their readers go (letter.Deps); nil sends none.
	Mailer letter.Mailer
	Link   string
	SignUp tenancy.SignUpPolicy
	// OIDC are identity providers by name, WebOrigins the web servers' addresses as browsers know them.
	OIDC       map[string]openid.Config
	WebOrigins []string
	// DirectoryClient asks the directory of users, and DirectoryPolicy says what its people become; without a client there is none.
	DirectoryClient directory.Client
	DirectoryPolicy directory.Policy
	// Provisioners are the identity providers that speak SCIM, by name.
	Provisioners map[string]provision.Provider
	// OTPRoles are the roles whose users have to have a second factor.
	OTPRoles []authz.Role
	// WrapFolders may replace what plans the mounts of sessions; tests race with it there.
	WrapFolders func(session.Folders) session.Folders
	Log         *slog.Logger
}

// lateDirectory is what tenancy asks about users of the directory, which is made after it.
type lateDirectory struct{ *directory.Service }

// New makes the use cases and joins them.
func New(d Deps) (*Set, error) {
	if d.Random == nil {
		d.Random = rand.Reader
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	if d.IDs == nil {
		d.IDs = tenancy.RandomIDs(d.Random)
	}
	part := func(name string) *slog.Logger { return d.Log.With("part", name) }
	n := &Set{}
	var err error
	if n.Audit, err = audit.New(d.Store); err != nil {
		return nil, err
	}
	if n.Usage, err = usage.New(usage.Deps{Store: d.Store, IDs: d.IDs}); err != nil {
		return nil, err
	}
	n.OTP, err = otp.New(otp.Deps{Store: d.Store, Seal: d.Seal, Clock: d.Clock, Random: d.Random, Required: d.OTPRoles, Log: part("otp")})
	if err != nil {
		return nil, err
	}
	proofs := &lateDirectory{}
	people := tenancy.Deps{Store: d.Store, Seal: d.Seal, Clock: d.Clock, IDs: d.IDs, Random: d.Random,
		PasswordCost: d.PasswordCost, Logins: d.Logins, LoginPolicy: d.LoginPolicy,
		SecondFactors: append([]tenancy.SecondFactor{n.OTP}, d.SecondFactors...), SignUp: d.SignUp, Log: part("tenancy")}
	if d.DirectoryClient != nil {
		people.Directory = proofs
	}
	if n.Tenancy, err = tenancy.New(people); err != nil {
		return nil, err
	}
	n.Letters, err = letter.New(letter.Deps{Store: d.Store, Tenancy: n.Tenancy, Mailer: d.Mailer, Link: d.Link, Clock: d.Clock,
		Random: d.Random, PasswordCost: d.PasswordCost, Log: part("letter")})
	if err != nil {
		return nil, err
	}
	n.Identities, err = identity.New(identity.Deps{Store: d.Store, Tenancy: n.Tenancy, Clock: d.Clock, Log: part("identity")})
	if err != nil {
		return nil, err
	}
	n.OpenID, err = openid.New(openid.Deps{Store: d.Store, Seal: d.Seal, Tenancy: n.Tenancy, Identities: n.Identities, Providers: d.OIDC,
		Origins: d.WebOrigins, Clock: d.Clock, Random: d.Random, Log: part("openid")})
	if err != nil {
		return nil, err
	}
	n.Passkeys, err = passkey.New(passkey.Deps{Store: d.Store, Seal: d.Seal, Tenancy: n.Tenancy, Origins: d.WebOrigins, Clock: d.Clock,
		IDs: d.IDs, Log: part("passkey")})
	if err != nil {
		return nil, err
	}
	n.Directory, err = directory.New(directory.Deps{Store: d.Store, Identity: n.Identities, Client: d.DirectoryClient,
		Policy: d.DirectoryPolicy,
		Clock:  d.Clock, IDs: d.IDs, Log: part("directory")})
	if err != nil {
		return nil, err
	}
	proofs.Service = n.Directory
	n.Provision, err = provision.New(provision.Deps{Store: d.Store, Identity: n.Identities, Providers: d.Provisioners, Clock: d.Clock,
		IDs: d.IDs,
		Log: part("provision")})
	if err != nil {
		return nil, err
	}
	n.Tokens, err = token.New(token.Deps{Store: d.Store, Tenancy: n.Tenancy, Clock: d.Clock, IDs: d.IDs, Random: d.Random,
		Log: part("token")})
	if err != nil {
		return nil, err
	}
	n.Resources, err = resource.New(resource.Deps{Store: d.Store, Seal: d.Seal, IDs: d.IDs, Tenancy: n.Tenancy, Log: part("resource")})
	if err != nil {
		return nil, err
	}
	images := image.Deps{Store: d.Store, IDs: d.IDs, Log: part("image")}
	if d.Streams != nil {
		images.Streams = d.Streams
	}
	if n.Images, err = image.New(images); err != nil {
		return nil, err
	}
	nodes := node.Deps{Store: d.Store}
	if d.Live != nil {
		nodes.Live = d.Live
	}
	if n.Nodes, err = node.New(nodes); err != nil {
		return nil, err
	}
	n.Reports = &node.Reports{Store: d.Store, Seal: d.Seal, Random: d.Random, IDs: d.IDs, DefaultGroup: resource.DefaultGroup,
		Log: part("node")}
	n.Folders, err = folder.New(folder.Deps{Store: d.Store, Tenancy: n.Tenancy, Proxies: d.Proxies, Clock: d.Clock, IDs: d.IDs,
		Log: part("folder")})
	if err != nil {
		return nil, err
	}
	n.Operations, err = operation.New(operation.Deps{Store: d.Store, Clock: d.Clock, IDs: d.IDs, Callbacks: d.Callbacks,
		Log: part("operation")})
	if err != nil {
		return nil, err
	}
	n.Notices, err = notice.New(notice.Deps{Store: d.Store, Seal: d.Seal, Mailer: d.Mailer, Receivers: d.Callbacks, Clock: d.Clock,
		IDs: d.IDs, Random: d.Random, Log: part("notice")})
	if err != nil {
		return nil, err
	}
	mounts := session.Folders(n.Folders)
	if d.WrapFolders != nil {
		mounts = d.WrapFolders(mounts)
	}
	sessions := session.Deps{Store: d.Store, Tenancy: n.Tenancy, Resource: n.Resources, Image: n.Images, Tasks: n.Operations,
		Clock: d.Clock,
		IDs:   d.IDs, Streams: d.Streams, Explainer: d.Explainer, Folders: mounts, Log: part("session")}
	if d.Live != nil {
		sessions.Live = d.Live
	}
	if n.Sessions, err = session.New(sessions); err != nil {
		return nil, err
	}
	if n.Templates, err = template.New(template.Deps{Store: d.Store, Tenancy: n.Tenancy, IDs: d.IDs}); err != nil {
		return nil, err
	}
	n.Idle, err = idle.New(idle.Deps{Store: d.Store, Clock: d.Clock, Tenancy: n.Tenancy, Sessions: n.Sessions, Usage: d.Usage,
		Log: part("idle")})
	if err != nil {
		return nil, err
	}
	n.Apps, err = app.New(app.Deps{ClusterID: d.ClusterID, Revoked: d.Revoked,
		Store: d.Store, Sessions: n.Sessions, Vault: d.Vault, Streams: d.Streams, Clock: d.Clock,
		IDs: d.IDs, Random: d.Random, Log: part("app")})
	if err != nil {
		return nil, err
	}
	n.Metrics, err = metric.New(metric.Deps{Store: d.Store, Sessions: n.Sessions, Agents: n.Nodes, Projects: n.Tenancy, Clock: d.Clock,
		Source: d.History})
	if err != nil {
		return nil, err
	}
	n.Tenancies, err = apply.New(apply.Deps{Store: d.Store, Tenancy: n.Tenancy, Resources: n.Resources, Letters: n.Letters,
		Permissions: folder.PermissionWords(), CheckHosts: folder.CheckHosts})
	if err != nil {
		return nil, err
	}
	n.Purges, err = purge.New(purge.Deps{Store: d.Store, Tenancy: n.Tenancy, Folders: n.Folders, IDs: d.IDs, Log: part("purge")})
	if err != nil {
		return nil, err
	}
	return n, nil
}
