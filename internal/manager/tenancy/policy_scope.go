package tenancy

import (
	"context"
	"fmt"
	"math"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// PolicyProps are what administrators set of a policy of users or projects; nil means the default of a new one and no change later. What
// does not concern the kind is ignored.
type PolicyProps struct {
	// MaxFolders and MaxNetworks are counts, 0 is no limit; MaxScopeBytes and MaxImageBytes are bytes, 0 or -1 is no limit.
	MaxFolders    *int
	MaxScopeBytes *int64
	// MaxModelSessions, MaxImages and MaxImageBytes concern users.
	MaxModelSessions *int
	MaxImages        *int
	MaxImageBytes    *int64
	// MaxLogins is how many logins a user may have at one time; 0 is as the cluster's configuration says.
	MaxLogins *int
	// MaxNetworks concerns projects.
	MaxNetworks *int
	// One of them concerns the kind.
	ExpectUsers    Expect[dbgen.UserResourcePolicy]
	ExpectProjects Expect[dbgen.ProjectResourcePolicy]
}

// setCount and setBytes check a limit and set it.
func setCount(name string, to *int32, from *int) error {
	if from == nil {
		return nil
	}
	if *from < 0 || *from > math.MaxInt32 {
		return fault.Invalidf("%s must be from 0 to %d, not %d", name, math.MaxInt32, *from)
	}
	*to = int32(*from)
	return nil
}

func setBytes(name string, to, from *int64) error {
	if from == nil {
		return nil
	}
	if *from < -1 {
		return fault.Invalidf("%s must be a number of bytes, or -1 for no limit, not %d", name, *from)
	}
	*to = *from
	return nil
}

// CreateUserPolicy makes a policy of users (superadmins).
func (s *Service) CreateUserPolicy(ctx context.Context, a authz.Actor, name string, p PolicyProps) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "user-policy.create", name)
	defer end(&err)
	return s.createPolicy(ctx, a, name, func(ctx context.Context, tx *store.Tx) (int64, error) { return tx.InsertUserPolicy(ctx, name) },
		func(ctx context.Context, tx *store.Tx) error { return changeUserPolicy(ctx, tx, name, p) })
}

// ModifyUserPolicy changes a policy of users (superadmins). Folders and images that are there stay; new ones meet the new limits.
func (s *Service) ModifyUserPolicy(ctx context.Context, a authz.Actor, name string, p PolicyProps) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "user-policy.modify", name)
	defer end(&err)
	if err := authz.Policies.Need(a, authz.Administer, authz.Object{}, "change resource policies"); err != nil {
		return err
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error { return changeUserPolicy(ctx, tx, name, p) })
}

func changeUserPolicy(ctx context.Context, tx *store.Tx, name string, p PolicyProps) error {
	r, err := tx.LockUserPolicy(ctx, store.Text(name))
	if store.Missing(err) {
		return authz.NotFound(policyNoun, name)
	}
	if err != nil {
		return fmt.Errorf("find resource policy %s: %w", name, err)
	}
	for _, err := range []error{p.ExpectUsers.met(ctx, tx, r), setCount("max_vfolder_count", &r.MaxVfolderCount, p.MaxFolders),
		setBytes("max_quota_scope_size", &r.MaxQuotaScopeSize, p.MaxScopeBytes),
		setCount("max_session_count_per_model_session", &r.MaxSessionCountPerModelSession, p.MaxModelSessions),
		setCount("max_customized_image_count", &r.MaxCustomizedImageCount, p.MaxImages),
		setBytes("max_customized_image_bytes", &r.MaxCustomizedImageBytes, p.MaxImageBytes)} {
		if err != nil {
			return err
		}
	}
	if n := p.MaxLogins; n != nil {
		if *n < 0 || *n > math.MaxInt32 {
			return fault.Invalidf("max_concurrent_logins must be from 0 to %d, not %d", math.MaxInt32, *n).
				WithNext("use 0 for what the cluster's configuration says")
		}
		if r.MaxConcurrentLogins = nil; *n > 0 {
			r.MaxConcurrentLogins = new(int32(*n))
		}
	}
	err = tx.UpdateUserPolicy(ctx, dbgen.UpdateUserPolicyParams{Name: r.Name, MaxVfolderCount: r.MaxVfolderCount,
		MaxQuotaScopeSize: r.MaxQuotaScopeSize, MaxSessionCountPerModelSession: r.MaxSessionCountPerModelSession,
		MaxCustomizedImageCount: r.MaxCustomizedImageCount, MaxCustomizedImageBytes: r.MaxCustomizedImageBytes,
		MaxConcurrentLogins: r.MaxConcurrentLogins})
	if err != nil {
		return fmt.Errorf("change resource policy %s: %w", name, err)
	}
	return nil
}

// DeleteUserPolicy deletes a policy that no user has (superadmins).
func (s *Service) DeleteUserPolicy(ctx context.Context, a authz.Actor, name string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "user-policy.delete", name)
	defer end(&err)
	return s.deletePolicy(ctx, a, name, "users", func(ctx context.Context, tx *store.Tx) (users []string, n int64, err error) {
		rows, err := tx.UsersOfUserPolicy(ctx, name)
		for _, r := range rows {
			users, n = append(users, r.Who), r.N
		}
		return users, n, err
	}, func(ctx context.Context, tx *store.Tx) (int64, error) { return tx.DeleteUserPolicy(ctx, name) })
}

// CreateProjectPolicy makes a policy of projects (superadmins).
func (s *Service) CreateProjectPolicy(ctx context.Context, a authz.Actor, name string, p PolicyProps) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "project-policy.create", name)
	defer end(&err)
	return s.createPolicy(ctx, a, name, func(ctx context.Context, tx *store.Tx) (int64, error) { return tx.InsertProjectPolicy(ctx, name) },
		func(ctx context.Context, tx *store.Tx) error { return changeProjectPolicy(ctx, tx, name, p) })
}

// ModifyProjectPolicy changes a policy of projects (superadmins). Folders that are there stay; new ones meet the new limits.
func (s *Service) ModifyProjectPolicy(ctx context.Context, a authz.Actor, name string, p PolicyProps) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "project-policy.modify", name)
	defer end(&err)
	if err := authz.Policies.Need(a, authz.Administer, authz.Object{}, "change resource policies"); err != nil {
		return err
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error { return changeProjectPolicy(ctx, tx, name, p) })
}

func changeProjectPolicy(ctx context.Context, tx *store.Tx, name string, p PolicyProps) error {
	r, err := tx.LockProjectPolicy(ctx, store.Text(name))
	if store.Missing(err) {
		return authz.NotFound(policyNoun, name)
	}
	if err != nil {
		return fmt.Errorf("find resource policy %s: %w", name, err)
	}
	for _, err := range []error{p.ExpectProjects.met(ctx, tx, r), setCount("max_vfolder_count", &r.MaxVfolderCount, p.MaxFolders),
		setBytes("max_quota_scope_size", &r.MaxQuotaScopeSize, p.MaxScopeBytes),
		setCount("max_network_count", &r.MaxNetworkCount, p.MaxNetworks)} {
		if err != nil {
			return err
		}
	}
	err = tx.UpdateProjectPolicy(ctx, r.MaxVfolderCount, r.MaxQuotaScopeSize, r.MaxNetworkCount, r.Name)
	if err != nil {
		return fmt.Errorf("change resource policy %s: %w", name, err)
	}
	return nil
}

// DeleteProjectPolicy deletes a policy that no project has (superadmins).
func (s *Service) DeleteProjectPolicy(ctx context.Context, a authz.Actor, name string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "project-policy.delete", name)
	defer end(&err)
	return s.deletePolicy(ctx, a, name, "projects", func(ctx context.Context, tx *store.Tx) (users []string, n int64, err error) {
		rows, err := tx.UsersOfProjectPolicy(ctx, name)
		for _, r := range rows {
			users, n = append(users, r.Who), r.N
		}
		return users, n, err
	}, func(ctx context.Context, tx *store.Tx) (int64, error) { return tx.DeleteProjectPolicy(ctx, name) })
}
