package nouns_test

import (
	"context"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/tenancy"
)

// public are the exported methods of nouns that do not take an actor, and why.
var public = map[string]string{
	"tenancy.Run":                "serves; not a use case",
	"tenancy.Authenticate":       "makes the actor",
	"tenancy.Authorize":          "makes the actor from a password",
	"tenancy.ResetAdminPassword": "is for the machine's own administrator, who has the state directory",
	"tenancy.FindProject":        "is for the other nouns, which decide",
	"tenancy.PolicyOfKey":        "is for the other nouns, which decide",
	"tenancy.UserByEmail":        "is for the other nouns, which decide",
	"resource.Slots":             "is for everybody",
	"image.Resolve":              "is for the other nouns, which decide",
	"session.Run":                "serves; not a use case",
	"session.Loops":              "is for the leader",
	"session.Uses":               "is for the other nouns; it tells nothing",
	"idle.Loops":                 "is for the leader",
	"operation.Run":              "serves; not a use case",
	"operation.Announcement":     "is for everybody",
	"operation.Frozen":           "is asked before the actor is known",
	"operation.Findings":         "is for the machine's own administrator, who has the state directory",
}

// own are the methods that answer any known actor about itself or about what is everybody's; for them the anonymous actor is
// what must be refused.
var own = []string{
	"tenancy.Roles", "tenancy.UpdatePassword", "tenancy.UpdateFullName", "tenancy.SSHKeypair", "tenancy.GenerateSSHKeypair",
	"tenancy.SetSSHKeypair", "tenancy.GetKeypairPolicy", "tenancy.ListKeypairPolicies", "tenancy.UserPolicies", "tenancy.ProjectPolicies",
	"tenancy.ListKeypairs", "tenancy.ListUsers", "tenancy.ListDomains", "tenancy.ListProjects", "tenancy.BootstrapScript",
	"tenancy.SetBootstrapScript",
	"resource.AllowedGroups", "resource.SchedulingPolicies", "resource.Usable", "image.Resolve",
	"resource.ListGroups", "resource.Presets", "image.List", "image.Get",
	"session.Match", "session.List", "session.ByID", "session.ListKernels", "session.Events", "operation.ManagerStatus", "idle.Report",
	"idle.Checks",
}

// Every exported method refuses a stranger: with Denied or NotFound about what belongs to others, and an
// unknown actor with Denied always.
func TestEveryMethodRefusesStrangers(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	secret := w.Running("secret", "a1")
	kernel := w.Session(secret).MainKernel().ID
	task := "00000000-0000-4000-8000-0000000000ff"
	w.Exec(`INSERT INTO background_tasks (id, kind, owner) VALUES ($1, 'x', $2)`, task, string(w.Admin.UserID))
	stranger := w.Stranger("mallory")

	// Arguments that name what the stranger has no business with.
	words := map[reflect.Type]any{
		reflect.TypeFor[cluster.SessionID]():      secret,
		reflect.TypeFor[[]cluster.SessionID]():    []cluster.SessionID{secret},
		reflect.TypeFor[cluster.KernelID]():       kernel,
		reflect.TypeFor[cluster.AgentID]():        cluster.AgentID("a1"),
		reflect.TypeFor[[]cluster.AgentID]():      []cluster.AgentID{"a1"},
		reflect.TypeFor[cluster.AccessKey]():      w.Admin.AccessKey,
		reflect.TypeFor[request.Session]():        request.Session{Name: "mine", Image: "python", OwnerAccessKey: w.Admin.AccessKey},
		reflect.TypeFor[session.DestroyOptions](): session.DestroyOptions{Forced: true, Owner: w.Admin.AccessKey},
		reflect.TypeFor[session.EventFilter]():    session.EventFilter{Session: string(secret), FromNow: true},
		reflect.TypeFor[tenancy.DotfileScope]():   tenancy.DotfileScope{Owner: w.Admin.AccessKey},
		reflect.TypeFor[cluster.Dotfile]():        cluster.Dotfile{Path: ".x", Perm: "644"},
		reflect.TypeFor[time.Duration]():          time.Millisecond,
	}
	texts := map[string]string{"tenancy.GetUser": w.Admin.Email, "tenancy.ActorOfUser": w.Admin.Email,
		"tenancy.GetProject":     string(w.Admin.Projects[0]),
		"tenancy.VisibleProject": string(w.Admin.Projects[0]), "tenancy.GetDomain": "default", "operation.Task": task,
		"operation.TaskEvents": task,
		"resource.GetGroup":    "default", "resource.CheckPresets": string(w.Admin.Projects[0]), "operation.SetManagerStatus": "frozen"}

	call := func(noun any, name string, m reflect.Method, actor authz.Actor) []reflect.Value {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		t.Cleanup(cancel)
		in := []reflect.Value{reflect.ValueOf(noun), reflect.ValueOf(ctx), reflect.ValueOf(actor)}
		for i := 3; i < m.Type.NumIn(); i++ {
			p := m.Type.In(i)
			switch v, ok := words[p]; {
			case ok:
				in = append(in, reflect.ValueOf(v))
			case p.Kind() == reflect.String:
				text := string(secret)
				if s, ok := texts[name]; ok {
					text = s
				}
				in = append(in, reflect.ValueOf(text).Convert(p))
			default:
				in = append(in, reflect.Zero(p))
			}
		}
		return m.Func.Call(in)
	}
	actorType := reflect.TypeFor[authz.Actor]()
	refused := func(err error) bool { return fault.Is(err, fault.Denied) || fault.Is(err, fault.NotFound) }
	seen := 0
	for of, noun := range map[string]any{"tenancy": w.Tenancy, "resource": w.Resources, "image": w.Images, "node": w.Nodes,
		"session": w.Sessions,
		"idle":    w.Idle, "operation": w.Operations} {
		typ := reflect.TypeOf(noun)
		for i := range typ.NumMethod() {
			m := typ.Method(i)
			name := of + "." + m.Name
			if _, ok := public[name]; ok || name == "operation.StartTask" { // which other nouns call for actors that they know
				continue
			}
			require.True(t, m.Type.NumIn() >= 3 && m.Type.In(2) == actorType, "%s must take the actor or be listed as public", name)
			errOf := func(a authz.Actor) error {
				out := call(noun, name, m, a)
				err, _ := out[len(out)-1].Interface().(error)
				return err
			}
			require.True(t, fault.Is(errOf(authz.Actor{}), fault.Denied), "%s answered an unknown actor: %v", name, errOf(authz.Actor{}))
			if !slices.Contains(own, name) {
				err := errOf(stranger)
				require.True(t, refused(err), "%s answered a stranger: %v", name, err)
			}
			seen++
		}
	}
	require.Greater(t, seen, 50)
	require.Equal(t, cluster.Running, w.Session(secret).Status, "nothing happened to the session")

	// What everybody may ask shows nothing of others.
	ctx := t.Context()
	sessions, err := w.Sessions.List(ctx, stranger, session.Filter{})
	require.NoError(t, err)
	require.Zero(t, sessions.Total)
	kernels, err := w.Sessions.ListKernels(ctx, stranger, session.KernelFilter{Session: secret})
	require.NoError(t, err)
	require.Zero(t, kernels.Total)
	byID, err := w.Sessions.ByID(ctx, stranger, []cluster.SessionID{secret})
	require.NoError(t, err)
	require.Empty(t, byID)
	keys, err := w.Tenancy.ListKeypairs(ctx, stranger, tenancy.KeypairFilter{})
	require.NoError(t, err)
	require.Equal(t, 1, keys.Total)
	require.Equal(t, stranger.AccessKey, keys.Items[0].AccessKey)
	users, err := w.Tenancy.ListUsers(ctx, stranger, tenancy.UserFilter{})
	require.NoError(t, err)
	require.Equal(t, 1, users.Total)
	domains, err := w.Tenancy.ListDomains(ctx, stranger)
	require.NoError(t, err)
	require.Len(t, domains, 1)
	projects, err := w.Tenancy.ListProjects(ctx, stranger, "default")
	require.NoError(t, err)
	require.Empty(t, projects)
	groups, err := w.Resources.ListGroups(ctx, stranger, nil)
	require.NoError(t, err)
	require.Empty(t, groups)

	// Monitors see and change nothing.
	monitor := stranger
	monitor.Role = "monitor"
	_, err = w.Sessions.Find(ctx, monitor, string(secret), "")
	require.NoError(t, err)
	_, err = w.Sessions.Destroy(ctx, monitor, string(secret), session.DestroyOptions{Forced: true})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	_, err = w.Sessions.Runner(ctx, monitor, string(secret), "")
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	k, err := w.Tenancy.GetKeypair(ctx, monitor, w.Admin.AccessKey)
	require.NoError(t, err)
	require.Empty(t, k.SecretKey, "secrets are for their owners and superadmins")
}
