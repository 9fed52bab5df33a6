package tenancy

import (
	"context"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// AdminEmail is the login of the first administrator.
const AdminEmail = "admin@berth.local"

// Default is the name of every first row: domain, project, resource group and policies.
const Default = "default"

const settingClusterID = "cluster-id"

// Credentials are those of the first administrator.
type Credentials struct {
	Email     string
	Password  seal.Secret // only when just created
	AccessKey cluster.AccessKey
	SecretKey seal.Secret
	// ClusterID names this cluster for good; agents of other clusters are refused.
	ClusterID string
}

// Prepare makes the first rows of tenancy in an empty cluster (domain, project and policies, the administrator with a
// keypair) and returns the administrator's credentials. created says whether this call made them; on later starts the
// password is empty. The transaction holds LockBootstrap.
func Prepare(ctx context.Context, tx *store.Tx, d Deps) (c Credentials, created bool, err error) {
	d = d.withDefaults()
	if c.ClusterID, err = clusterID(ctx, tx, d.IDs); err != nil {
		return c, false, err
	}
	row, err := tx.FirstAdministrator(ctx)
	switch {
	case store.Missing(err):
		return c, true, makeFirstRows(ctx, tx, d, &c)
	case err != nil:
		return c, false, fmt.Errorf("look for the administrator: %w", err)
	}
	secret, err := d.Seal.Open(row.SecretSealed, keypairPurpose(row.AccessKey))
	if err != nil {
		return c, false, fmt.Errorf("open the administrator's secret key: %w", err)
	}
	c.Email, c.AccessKey, c.SecretKey = row.Email, cluster.AccessKey(row.AccessKey), secret
	return c, false, nil
}

func clusterID(ctx context.Context, tx *store.Tx, ids func() string) (string, error) {
	raw, err := tx.GetSetting(ctx, settingClusterID)
	if store.Missing(err) {
		raw, _ = json.Marshal(ids()) // a string always encodes
		err = tx.SetSetting(ctx, settingClusterID, raw)
	}
	if err != nil {
		return "", fmt.Errorf("read the cluster's id: %w", err)
	}
	var id string
	if err := json.Unmarshal(raw, &id); err != nil {
		return "", fmt.Errorf("read the cluster's id: %w", err)
	}
	return id, nil
}

func makeFirstRows(ctx context.Context, tx *store.Tx, d Deps, c *Credentials) error {
	password, err := newPassword(d.Random)
	if err != nil {
		return err
	}
	hash, err := seal.NewPasswords(1, d.PasswordCost, d.Random).Hash(ctx, password)
	if err != nil {
		return err
	}
	key, secret, err := newKeypair(d.Random)
	if err != nil {
		return err
	}
	sealed, err := d.Seal.Seal(secret, keypairPurpose(string(key)))
	if err != nil {
		return err
	}
	user, project := d.IDs(), d.IDs()
	about := "Made at the first start."
	steps := []func() error{
		func() error { _, err := tx.AddDomain(ctx, Default, &about); return err },
		func() error { return tx.AddDefaultPolicies(ctx) },
		func() error { return tx.AddProject(ctx, project, Default, &about, Default) },
		func() error {
			return tx.AddUser(ctx, dbgen.AddUserParams{ID: user, Username: "admin", Email: AdminEmail, PasswordHash: &hash,
				FullName: "Administrator", DomainName: Default, Role: string(authz.RoleSuperadmin), MainAccessKey: (*string)(&key)})
		},
		func() error {
			return tx.AddKeypair(ctx, dbgen.AddKeypairParams{AccessKey: string(key), SecretSealed: sealed, UserID: user, IsAdmin: true,
				ResourcePolicy: Default})
		},
		func() error { return tx.AddMember(ctx, project, user) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("make the first rows: %w", err)
		}
	}
	c.Email, c.Password, c.AccessKey, c.SecretKey = AdminEmail, password, key, secret
	return nil
}

func keypairPurpose(accessKey string) string { return "keypair " + accessKey }
func sshPurpose(accessKey string) string     { return "ssh " + accessKey }

// newKeypair makes an access key of AKIA and 16 base32 characters and a secret of 40 url-safe ones.
func newKeypair(random io.Reader) (cluster.AccessKey, seal.Secret, error) {
	var raw [10 + 30]byte
	if _, err := io.ReadFull(random, raw[:]); err != nil {
		return "", "", fmt.Errorf("make a keypair: %w", err)
	}
	key := "AKIA" + base32.StdEncoding.EncodeToString(raw[:10])
	return cluster.AccessKey(key), seal.Secret(base64.RawURLEncoding.EncodeToString(raw[10:])), nil
}

// newPassword makes four groups of five letters and digits: 100 bits without characters
// that people mix up.
func newPassword(random io.Reader) (seal.Secret, error) {
	const letters = "abcdefghjkmnpqrstuvwxyz23456789A" // 32: every byte picks evenly
	var raw [20]byte
	for {
		if _, err := io.ReadFull(random, raw[:]); err != nil {
			return "", fmt.Errorf("make a password: %w", err)
		}
		var b strings.Builder
		for i, c := range raw {
			if i > 0 && i%5 == 0 {
				b.WriteByte('-')
			}
			b.WriteByte(letters[c%32])
		}
		// The rule of web consoles: letters, digits and something else.
		if p := b.String(); strings.ContainsAny(p, "23456789") {
			return seal.Secret(p), nil
		}
	}
}
