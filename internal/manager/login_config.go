package manager

import (
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/login"
	"berth.dev/berth/internal/manager/tenancy"
)

// LoginConfig bounds logins by password: those of browsers, and of clients in session mode.
type LoginConfig struct {
	// MaxAge is how long a login lasts unless it is extended, MaxLife how long however often it is extended, Idle how long it lasts unused.
	MaxAge, MaxLife, Idle time.Duration
	// Concurrent is how many logins a user may have at one time, where the user's policy does not say (max_concurrent_logins). 0 means
	// 100, of which the oldest ends for a new one.
	Concurrent int
	// PasswordMaxAge is how old a password may be at a login; who has an older one must change it. 0 means any age.
	PasswordMaxAge time.Duration
	// SignOut lets users deactivate themselves.
	SignOut bool
}

func defaultLoginConfig() LoginConfig {
	d := tenancy.DefaultLoginPolicy()
	return LoginConfig{MaxAge: d.MaxAge, MaxLife: d.MaxLife, Idle: d.Idle, SignOut: true}
}

// Validate checks the ranges.
func (c LoginConfig) Validate() error {
	const year = 365 * 24 * time.Hour
	for _, v := range []struct {
		name       string
		value      time.Duration
		least, top time.Duration
	}{
		{"max_age", c.MaxAge, time.Minute, year}, {"max_life", c.MaxLife, c.MaxAge, 10 * year}, {"idle", c.Idle, 2 * time.Minute, year},
	} {
		if v.value < v.least || v.value > v.top {
			return fault.Invalidf("manager.login.%s is %s", v.name, v.value).WithNext("choose between %s and %s", v.least, v.top)
		}
	}
	if c.PasswordMaxAge != 0 && c.PasswordMaxAge < time.Hour {
		return fault.Invalidf("manager.login.password_max_age is %s", c.PasswordMaxAge).WithNext("choose an hour at least, or 0 for any age")
	}
	if c.Concurrent < 0 || c.Concurrent > login.MaxSessions {
		return fault.Invalidf("manager.login.concurrent is %d", c.Concurrent).WithNext("choose between 0 and %d", login.MaxSessions)
	}
	return nil
}

func (c LoginConfig) policy() tenancy.LoginPolicy {
	return tenancy.LoginPolicy{MaxAge: c.MaxAge, MaxLife: c.MaxLife, Idle: c.Idle, Concurrent: c.Concurrent, PasswordMaxAge: c.PasswordMaxAge,
		NoSignOut: !c.SignOut}
}
