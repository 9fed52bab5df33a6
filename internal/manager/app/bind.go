package app

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/wire/proxy"
)

// This file decides what a launch token opens, and sees to it that it does so once.
//
// A token that a start of an app gave is bound to that app and to the options that it was started with. Binding it (the proxy's
// /add) fixes everything else and gives another token, which is what the address in the browser holds. Either works once.

// startOptions are how an app is started.
type startOptions struct {
	Envs      map[string]string `json:"envs,omitempty"`
	Arguments map[string]any    `json:"arguments,omitempty"`
}

// launchRequest is everything about a launch that its visitor chooses.
type launchRequest struct {
	App      string `json:"app"`
	Protocol string `json:"protocol,omitempty"`
	Port     int    `json:"port,omitempty"`
	startOptions
	Public    bool       `json:"public,omitempty"`
	Allowed   []string   `json:"allowed,omitempty"` // as parseAllowed gives them
	Label     string     `json:"label,omitempty"`
	ProxyPort int        `json:"proxy_port,omitempty"`
	Mode      proxy.Mode `json:"mode,omitempty"`
	NoReuse   bool       `json:"no_reuse,omitempty"`
}

// startedWith is what is stored of the options of a start; nil without any.
func startedWith(w Want) json.RawMessage {
	if len(w.Envs)+len(w.Arguments) == 0 {
		return nil
	}
	raw, err := json.Marshal(startOptions{w.Envs, w.Arguments})
	if err != nil {
		return nil // they came as JSON
	}
	return raw
}

// asks reads what a proxy asks to launch with a token, and refuses what the token is not for.
func asks(l dbgen.AppLaunch, req proxy.LaunchRequest) (Want, launchRequest, error) {
	var none launchRequest
	want, err := ParseWant(req.App, req.Port, req.Envs, req.Arguments)
	if err != nil {
		return want, none, err
	}
	if want.App == "" {
		return want, none, fault.Invalidf("the launch names no app").WithNext("name one, for example app=jupyter")
	}
	allowed, err := parseAllowed(splitAllowed(req.Allowed))
	if err != nil {
		return want, none, err
	}
	if len(allowed) == 0 {
		allowed = nil
	}
	asked := launchRequest{App: want.App, Protocol: req.Protocol, Port: want.Port, Public: req.Public, Allowed: allowed, Label: req.Label,
		ProxyPort: req.ProxyPort, Mode: req.Mode, NoReuse: req.NoReuse}
	if asked.startOptions, err = canonical(startOptions{want.Envs, want.Arguments}); err != nil {
		return want, none, err
	}
	if l.App != "" && (l.App != asked.App || asked.Port != 0 && l.AskedPort != 0 && asked.Port != int(l.AskedPort)) {
		return want, none, otherLaunch(l)
	}
	if l.Started != nil && len(asked.Envs)+len(asked.Arguments) > 0 {
		var started startOptions
		if err := json.Unmarshal(l.Started, &started); err != nil {
			return want, none, fmt.Errorf("read how app %s was started: %w", l.App, err)
		}
		if !reflect.DeepEqual(started, asked.startOptions) {
			return want, none, otherLaunch(l)
		}
	}
	if l.Request != nil {
		var bound launchRequest
		if err := json.Unmarshal(l.Request, &bound); err != nil {
			return want, none, fmt.Errorf("read what a launch token is bound to: %w", err)
		}
		if !reflect.DeepEqual(bound, asked) {
			return want, none, otherLaunch(l)
		}
	}
	return want, asked, nil
}

// canonical are the options as JSON gives them back, so that they compare equal to stored ones.
func canonical(o startOptions) (startOptions, error) {
	raw, err := json.Marshal(o)
	if err != nil {
		return o, fmt.Errorf("render the options of a start: %w", err)
	}
	var out startOptions
	if err := json.Unmarshal(raw, &out); err != nil {
		return o, fmt.Errorf("read the options of a start: %w", err)
	}
	return out, nil
}

func otherLaunch(l dbgen.AppLaunch) error {
	what := "another app"
	if l.App != "" {
		what = "app " + l.App + " with other options"
	}
	return fault.Deniedf("this link was made for %s: its address has been changed", what).WithReason("launch-changed").
		WithNext("open the app again, with the options that you want")
}

// launchUse is one use of a launch token.
type launchUse struct {
	hash  []byte
	by    string
	again bool // this is a further try of what may have used it already
	now   time.Time
}

// useOf is the use that a launch makes of its token. Proxies of version 2 do not name their tries; a further one is known by the
// circuits that it passes over.
func useOf(l dbgen.AppLaunch, req proxy.LaunchRequest, now time.Time) launchUse {
	const maxAttempt = 64
	return launchUse{hash: l.TokenHash, by: "launch " + req.Proxy + " " + fmt.Sprintf("%.*s", maxAttempt, req.Attempt),
		again: len(req.Passed) > 0, now: now}
}

// unused refuses a token that is used up, before anything is started for it; takeLaunch decides.
func unused(l dbgen.AppLaunch, u launchUse) error {
	if l.UsedAt != nil && (!u.again || l.UsedBy == nil || *l.UsedBy != u.by) {
		return usedToken(l)
	}
	return nil
}

// takeLaunch uses a token up. Of several managers and proxies that try one does.
func takeLaunch(ctx context.Context, tx *store.Tx, u launchUse) error {
	n, err := tx.UseLaunch(ctx, u.now, u.by, u.hash, u.again)
	if err != nil {
		return fmt.Errorf("use a launch token: %w", err)
	}
	if n == 0 {
		return usedToken(dbgen.AppLaunch{})
	}
	return nil
}

func usedToken(l dbgen.AppLaunch) error {
	what := "the app"
	if l.App != "" {
		what = "app " + l.App
	}
	return fault.Deniedf("this link was used already: it opens %s once", what).WithReason("launch-used").
		WithNext("go to the window that it opened, or open the app again from the console or with `berth app open`")
}

// boundToken is the one token that a launch token can be bound to. Nobody gets from it back to the other.
func boundToken(token string) string {
	sum := sha256.Sum256([]byte("berth.dev bound launch token\x00" + token))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Bind fixes what a launch token opens (proxies) and returns the token that opens exactly that. The token itself is used up; the
// same question is answered with the same token again, because browsers repeat what they got no answer to.
func (s *Service) Bind(ctx context.Context, req proxy.LaunchRequest) (proxy.BindReply, error) {
	var none proxy.BindReply
	l, err := s.launch(ctx, req.Token, req.Session)
	if err != nil {
		return none, err
	}
	if l.Request != nil {
		return none, otherLaunch(l)
	}
	if _, err := s.session(ctx, cluster.SessionID(l.SessionID), l.KernelID); err != nil {
		return none, err
	}
	_, asked, err := asks(l, req)
	if err != nil {
		return none, err
	}
	raw, err := json.Marshal(asked)
	if err != nil {
		return none, fmt.Errorf("render a launch: %w", err)
	}
	sum := sha256.Sum256(raw) // maps are written in order
	use := launchUse{hash: l.TokenHash, by: "bind " + hex.EncodeToString(sum[:]), again: true, now: s.d.Clock()}
	if err := unused(l, use); err != nil {
		return none, err
	}
	token := boundToken(req.Token)
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := takeLaunch(ctx, tx, use); err != nil {
			return err
		}
		if _, err := tx.AddBoundLaunch(ctx, hashed(token), raw, l.TokenHash); err != nil {
			return fmt.Errorf("bind a launch token: %w", err)
		}
		return nil
	})
	if err != nil {
		return none, err
	}
	return proxy.BindReply{Token: token}, nil
}
