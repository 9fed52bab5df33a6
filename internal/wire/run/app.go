package run

import "time"

// The routes of apps. {name} is an app's name.
const (
	// PathDial (POST ?port=N with the upgrade of package wire/tunnel) connects to a port on the loopback address of the
	// container, or to an app that the runner serves itself (tunnel.PortSSH and its like).
	PathDial     = "/v1/dial"
	PathApps     = "/v1/apps"
	PathAppStart = "/v1/apps/{name}/start"
	PathAppStop  = "/v1/apps/{name}/stop"
	PathAppLog   = "/v1/apps/{name}/log" // GET ?tail=BYTES -> text
)

// CanApps and CanDial are capabilities that Hello may name.
const (
	CanApps = "apps"
	CanDial = "dial"
)

// AppProtocol is what an app speaks; the names are the wire's.
type AppProtocol string

// The protocols. A preopen app is started by the session itself and only reached.
const (
	AppHTTP    AppProtocol = "http"
	AppTCP     AppProtocol = "tcp"
	AppPreopen AppProtocol = "preopen"
	AppVNC     AppProtocol = "vnc"
	AppRDP     AppProtocol = "rdp"
)

// AppPort is an app that the image's label or the session's request declares.
type AppPort struct {
	Name     string      `json:"name"`
	Protocol AppProtocol `json:"protocol"`
	Ports    []int       `json:"ports"`
}

// AppOrigin says where an app comes from.
type AppOrigin string

// The origins. An installed app is a well-known one that nobody declared and that the session has a program for; a noticed
// one is a port that a program of the session listens on.
const (
	AppIntrinsic AppOrigin = "intrinsic"
	AppDeclared  AppOrigin = "declared"
	AppInstalled AppOrigin = "installed"
	AppNoticed   AppOrigin = "noticed"
)

// AppState is how an app is doing.
type AppState string

// The states. AppMissing: the image has no program for it; AppFailed: it ended by itself more often than its restart
// policy allows, or did not become ready; Detail says why.
const (
	AppStopped  AppState = "stopped"
	AppStarting AppState = "starting"
	AppReady    AppState = "ready"
	AppFailed   AppState = "failed"
	AppMissing  AppState = "missing"
)

// App is one app of the session.
type App struct {
	AppPort
	Origin    AppOrigin  `json:"origin"`
	State     AppState   `json:"state"`
	Detail    string     `json:"detail,omitempty"` // what happened and what to do next, for people
	PID       int        `json:"pid,omitempty"`
	Restarts  int        `json:"restarts,omitempty"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	// URLTemplate, AllowedArguments and AllowedEnvs come from the image's service definition.
	URLTemplate      string            `json:"url_template,omitempty"`
	AllowedArguments []string          `json:"allowed_arguments,omitempty"`
	AllowedEnvs      []string          `json:"allowed_envs,omitempty"`
	DefaultArguments map[string]string `json:"default_arguments,omitempty"`
}

// AppList is the reply of GET /v1/apps: intrinsic and declared apps in their order, then noticed ports by number.
type AppList struct {
	Apps []App `json:"apps"` // never nil
}

// AppStartRequest is the body of POST /v1/apps/{name}/start. Starting an app that is ready changes nothing, whatever
// arguments come along. The reply comes when the app answers on its port, or after WaitMS (at most MaxWait; 0 means
// 20 s) with the state that it then has; a start that failed is a Failure with the last lines of its log in Msg.
type AppStartRequest struct {
	// Port chooses among the app's ports; 0 means its first.
	Port int `json:"port,omitempty"`
	// Envs and Arguments are what the service definition allows; a value may be a string, a list of strings or null (a
	// flag without a value).
	Envs      map[string]string `json:"envs,omitempty"`
	Arguments map[string]any    `json:"arguments,omitempty"`
	WaitMS    int               `json:"wait_ms,omitempty"`
}

// AppStartResult says where the app can be reached: the port to dial.
type AppStartResult struct {
	App  App `json:"app"`
	Port int `json:"port"`
}
