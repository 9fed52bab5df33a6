package tenancy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/dbtype"
)

const (
	// maxName bounds names of domains and projects, maxText their descriptions and ids elsewhere.
	maxName = 64
	maxText = 512
	// maxRegistries bounds the list of a domain, maxHosts that of folder hosts of a domain or project.
	maxRegistries = 100
	maxHosts      = 1000
)

// DomainProps are what superadmins set of a domain; nil means the default when the domain is made and no change later.
type DomainProps struct {
	// Name is the new name; only a domain that nothing belongs to gets one.
	Name, Description *string
	Active            *bool
	// TotalSlots are amounts as written, per slot; a slot that is not named is unlimited.
	TotalSlots map[string]string
	// AllowedHosts are permissions by host, as folder.HostPermissions checks them.
	AllowedHosts map[string]any
	// AllowedRegistries replaces the registries whose images the domain's sessions may run, besides images that are local to the agents.
	AllowedRegistries *[]string
	IntegrationID     *string
	Expect            Expect[dbgen.Domain]
}

// CreateDomain makes a domain (superadmins). It is empty: users and projects are made in it, and resource groups associated with it.
func (s *Service) CreateDomain(ctx context.Context, a authz.Actor, name string, p DomainProps) (_ *Domain, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "domain.create", name)
	defer end(&err)
	if err := authz.Domains.Need(a, authz.Administer, authz.Object{Name: name, Domain: name}, "create domains"); err != nil {
		return nil, err
	}
	p.Name = &name
	row := dbgen.Domain{IsActive: true, TotalResourceSlots: cluster.Slots{}, AllowedVfolderHosts: map[string]any{},
		AllowedDockerRegistries: []string{}}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := setDomain(ctx, tx, &row, p); err != nil {
			return err
		}
		err := tx.InsertDomain(ctx, dbgen.InsertDomainParams{Name: row.Name, Description: row.Description, IsActive: row.IsActive,
			TotalResourceSlots: row.TotalResourceSlots, AllowedVfolderHosts: row.AllowedVfolderHosts,
			AllowedDockerRegistries: row.AllowedDockerRegistries, IntegrationID: row.IntegrationID})
		return domainRefused(err, name, row.Name)
	})
	if err != nil {
		return nil, fmt.Errorf("create domain %s: %w", name, err)
	}
	return s.GetDomain(ctx, a, name)
}

// ModifyDomain changes a domain (superadmins). Lower totals end no session; waiting ones meet them in the next scheduling pass. Who belongs
// to a domain that is not active is let in nowhere, as DeleteDomain says.
func (s *Service) ModifyDomain(ctx context.Context, a authz.Actor, name string, p DomainProps) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "domain.modify", name)
	defer end(&err)
	return s.changeDomain(ctx, a, name, p)
}

// DeleteDomain deactivates a domain (superadmins): its users are let in nowhere, connections, apps and tokens end, and nothing that waits
// starts. Sessions run on, and everything stays. ModifyDomain undoes it.
func (s *Service) DeleteDomain(ctx context.Context, a authz.Actor, name string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "domain.delete", name)
	defer end(&err)
	return s.changeDomain(ctx, a, name, DomainProps{Active: new(false)})
}

func (s *Service) changeDomain(ctx context.Context, a authz.Actor, name string, p DomainProps) error {
	o := authz.Object{Name: name, Domain: name}
	if err := authz.Domains.Need(a, authz.Administer, o, "change domains"); err != nil {
		return err
	}
	err := s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		// Before the row: changes of users take their locks in this order, and count superadmins, too.
		if err := tx.LockUserChanges(ctx); err != nil {
			return fmt.Errorf("wait for other changes of users: %w", err)
		}
		row, err := tx.LockDomain(ctx, store.Text(name))
		if store.Missing(err) {
			return authz.NotFound(domainNoun, name)
		}
		if err != nil {
			return fmt.Errorf("find domain %s: %w", name, err)
		}
		if err := notPurged(ctx, tx, "domain", row.Name, name); err != nil {
			return err
		}
		before := row
		if err := p.Expect.met(ctx, tx, row); err != nil {
			return err
		}
		if err := setDomain(ctx, tx, &row, p); err != nil {
			return err
		}
		if err := domainStays(ctx, tx, a, before, row); err != nil {
			return err
		}
		err = tx.UpdateDomain(ctx, dbgen.UpdateDomainParams{Name: before.Name, NewName: row.Name, Description: row.Description,
			IsActive: row.IsActive, TotalResourceSlots: row.TotalResourceSlots, AllowedVfolderHosts: row.AllowedVfolderHosts,
			AllowedDockerRegistries: row.AllowedDockerRegistries, IntegrationID: row.IntegrationID})
		tx.Wake(store.TopicSchedule)
		return domainRefused(err, before.Name, row.Name)
	})
	if err != nil {
		return fmt.Errorf("change domain %s: %w", name, err)
	}
	return nil
}

// domainStays refuses what would leave the cluster without its first domain or without a superadmin who is let in.
func domainStays(ctx context.Context, tx *store.Tx, a authz.Actor, before, after dbgen.Domain) error {
	if before.Name == Default && (after.Name != before.Name || !after.IsActive) {
		return fault.Conflictf("domain %s is the cluster's first one: it keeps its name and stays active", before.Name).
			WithNext("make another domain for those who shall not be in it")
	}
	if !before.IsActive || after.IsActive {
		return nil
	}
	if before.Name == a.Domain {
		return fault.Conflictf("domain %s is your own: you would be let in nowhere", before.Name).
			WithNext("have it done by a superadmin of another domain")
	}
	n, err := tx.CountSuperadminsOutside(ctx, before.Name)
	if err != nil {
		return fmt.Errorf("count superadmins: %w", err)
	}
	if n == 0 {
		return fault.Conflictf("all active superadmins are in domain %s", before.Name).WithNext("make a superadmin in another domain first")
	}
	return nil
}

// setDomain applies properties to a row after checking them.
func setDomain(ctx context.Context, tx *store.Tx, row *dbgen.Domain, p DomainProps) error {
	if p.Name != nil {
		if err := checkName("a domain", *p.Name, false); err != nil {
			return err
		}
		row.Name = *p.Name
	}
	if p.AllowedRegistries != nil {
		if err := checkRegistries(*p.AllowedRegistries); err != nil {
			return err
		}
		row.AllowedDockerRegistries = append([]string{}, *p.AllowedRegistries...)
	}
	store.Set(&row.IsActive, p.Active)
	return setTotals(ctx, tx, totals{p.Description, p.IntegrationID, p.TotalSlots, p.AllowedHosts},
		&row.Description, &row.IntegrationID, &row.TotalResourceSlots, &row.AllowedVfolderHosts)
}

// totals are the properties that domains and projects share.
type totals struct {
	description, integration *string
	slots                    map[string]string
	hosts                    map[string]any
}

func setTotals(ctx context.Context, tx *store.Tx, p totals, description, integration **string, slots *cluster.Slots,
	hosts *dbtype.Object) error {
	for _, text := range []struct {
		name string
		to   **string
		from *string
	}{{"description", description, p.description}, {"integration_id", integration, p.integration}} {
		if text.from == nil {
			continue
		}
		if len(*text.from) > maxText || store.Text(*text.from) != *text.from {
			return fault.Invalidf("%s has more than %d bytes or is no text", text.name, maxText)
		}
		*text.to = text.from
	}
	if p.hosts != nil {
		if len(p.hosts) > maxHosts {
			return fault.Invalidf("allowed_vfolder_hosts names %d hosts; %d are the most", len(p.hosts), maxHosts)
		}
		*hosts = p.hosts
	}
	if p.slots == nil {
		return nil
	}
	kinds, err := tx.SlotKinds(ctx)
	if err != nil {
		return fmt.Errorf("read the kinds of slots: %w", err)
	}
	*slots, err = readLimits("total_resource_slots", p.slots, cluster.AgreedKinds(kinds))
	return err
}

// checkName refuses names that people or paths of URLs would take for something else.
func checkName(what, name string, spaces bool) error {
	bad := name == "" || len(name) > maxName || store.Text(name) != name || strings.TrimSpace(name) != name
	if _, id := cluster.CanonicalUUID(name); id {
		bad = true // would be taken for an id
	}
	for i, r := range name {
		word := unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r) || r == '_'
		bad = bad || !word && (i == 0 || !strings.ContainsRune("-.@+", r) && (r != ' ' || !spaces))
	}
	if !bad {
		return nil
	}
	return fault.Invalidf("%.80q cannot be the name of %s", name, what).
		WithNext("use up to %d letters, digits and - . _ @ +, beginning with a letter or digit", maxName)
}

func checkRegistries(registries []string) error {
	if len(registries) > maxRegistries {
		return fault.Invalidf("a domain allows %d registries at most, not %d", maxRegistries, len(registries))
	}
	if i := slices.IndexFunc(registries, func(r string) bool {
		return r == "" || len(r) > 255 || store.Text(r) != r || strings.ContainsAny(r, "/ \t\n")
	}); i >= 0 {
		return fault.Invalidf("%.80q is no registry", registries[i]).WithNext("write host or host:port, as references of images begin")
	}
	return nil
}

// domainRefused tells why the database refused a row of a domain.
func domainRefused(err error, old, name string) error {
	switch {
	case err == nil:
		return nil
	case store.Duplicate(err, ""):
		return fault.Conflictf("there is a domain %s already", name).WithNext("choose another name")
	case store.Dangling(err):
		return fault.Conflictf("domain %s is in use and keeps its name: users, projects, folders or resource groups belong to it", old).
			WithNext("make a new domain, or change the description")
	}
	return fmt.Errorf("store the domain: %w", err)
}
