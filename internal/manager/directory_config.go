package manager

import (
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/ldap"
	"berth.dev/berth/internal/manager/tenancy/directory"
	"berth.dev/berth/internal/manager/tenancy/identity"
	"berth.dev/berth/internal/manager/tenancy/provision"
)

// DirectoryConfig is the LDAP directory whose people log in, and what they become. Without a url there is none.
type DirectoryConfig struct {
	// Name is what the directory is called here. It never changes: identities of its people are kept under it.
	Name string
	ldap.Config
	// Rules say what people become by their groups.
	Rules identity.Rules
	// CreateAtLogin makes accounts at the first login, where the rules make accounts; otherwise syncs alone make them.
	CreateAtLogin bool
	// SyncEvery is the time between comparisons of the whole directory with the users here; 0 leaves them to administrators.
	SyncEvery time.Duration
	// MostRemoved and MostRemovedPercent (of the active users of the directory) are how many users a comparison may take access from
	// without an administrator's word. The smaller one counts.
	MostRemoved, MostRemovedPercent int
}

func defaultDirectoryConfig() DirectoryConfig {
	l := directory.DefaultLimits()
	return DirectoryConfig{Name: "ldap", Config: ldap.DefaultConfig(), Rules: identity.Rules{Domain: "default", Create: true},
		CreateAtLogin: true,
		SyncEvery:     time.Hour, MostRemoved: l.MostRemoved, MostRemovedPercent: l.MostRemovedPercent}
}

// Validate reports the first value that cannot be meant.
func (c DirectoryConfig) Validate() error {
	const key = "manager.directory"
	if c.URL == "" {
		return nil
	}
	if err := identity.CheckName(c.Name); err != nil {
		return err
	}
	if err := c.Config.Validate(key); err != nil {
		return err
	}
	if c.SyncEvery != 0 && (c.SyncEvery < time.Minute || c.SyncEvery > 30*24*time.Hour) {
		return fault.Invalidf("%s.sync_every is %s", key, c.SyncEvery).WithNext("choose a minute to 30 days, or 0 for no schedule")
	}
	if c.MostRemoved < 1 || c.MostRemoved > 1_000_000 || c.MostRemovedPercent < 1 || c.MostRemovedPercent > 100 {
		return fault.Invalidf("%s.most_removed or %s.most_removed_percent is out of bounds", key, key).
			WithNext("choose 1 to 1000000 users and 1 to 100 percent")
	}
	return c.Rules.Validate(key + ".rules")
}

func (c DirectoryConfig) policy() directory.Policy {
	return directory.Policy{Name: c.Name, Rules: c.Rules, CreateAtLogin: c.CreateAtLogin, SyncEvery: c.SyncEvery,
		Limits: directory.Limits{MostRemoved: c.MostRemoved, MostRemovedPercent: c.MostRemovedPercent}}
}

// SCIMConfig is an identity provider that writes users and groups by SCIM 2.0.
type SCIMConfig struct {
	// Rules say what its users become. All are of one domain, that of the token.
	Rules identity.Rules
	// MostRemovals is from how many users it may take access in an hour without an administrator's word; 0 means 50.
	MostRemovals int
}

// provisioners are those of SCIM.
func (c Config) provisioners() (map[string]provision.Provider, error) {
	out := map[string]provision.Provider{}
	for name, p := range c.SCIM {
		if err := identity.CheckName(name); err != nil {
			return nil, err
		}
		if name == c.Directory.Name && c.Directory.URL != "" {
			return nil, fault.Invalidf("manager.scim.%s has the name of the directory", name).WithNext("choose another name")
		}
		is := provision.Provider{Rules: p.Rules, MostRemovals: p.MostRemovals}
		if is.MostRemovals == 0 {
			is.MostRemovals = provision.DefaultMostRemovals
		}
		if err := is.Validate("manager.scim." + name); err != nil {
			return nil, err
		}
		out[name] = is
	}
	return out, nil
}
