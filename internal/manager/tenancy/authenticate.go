package tenancy

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// AuthFailed is what everybody hears who is not let in, whatever was wrong.
func AuthFailed() error {
	return fault.New(fault.Unauthenticated, "Credential/signature mismatch.").WithReason("auth-failed").
		WithNext("check your access key and secret key, or your email and password")
}

// Authenticate finds the actor of an access key and its secret; httpapi verifies the signature with it.
// Unknown and inactive keys are Unauthenticated with reason auth-failed (public). Every request asks, so what is known of
// an active key is believed for a moment, and forgotten when the database tells of a change (see store.ActorsTurn).
func (s *Service) Authenticate(ctx context.Context, key cluster.AccessKey) (authz.Actor, seal.Secret, error) {
	if key == "" || len(key) > 20 {
		return authz.Actor{}, "", AuthFailed()
	}
	now := s.d.Clock()
	known, turn, ok := s.actors.Find(key, now)
	if ok && !known.ended(now) {
		return known.actor, known.secret, nil
	}
	// What is known of a key that is refused is remembered, too: else the time to an answer tells which keys there are. It has a cache
	// of its own, because strangers fill it.
	_, refusedTurn, refused := s.strangers.Find(key, now)
	if refused {
		return authz.Actor{}, "", AuthFailed()
	}
	known, err := s.findActor(ctx, key)
	switch {
	case fault.Is(err, fault.Unauthenticated):
		s.strangers.Keep(key, struct{}{}, refusedTurn, now)
		return authz.Actor{}, "", err
	case err != nil:
		return authz.Actor{}, "", err
	}
	s.actors.Keep(key, known, turn, now)
	return known.actor, known.secret, nil
}

// knownActor is what Authenticate remembers; nobody writes into it.
type knownActor struct {
	actor  authz.Actor
	secret seal.Secret
	ends   *time.Time // of a keypair that was replaced
}

func (k knownActor) ended(now time.Time) bool { return k.ends != nil && !now.Before(*k.ends) }

func (s *Service) findActor(ctx context.Context, key cluster.AccessKey) (knownActor, error) {
	row, err := s.d.Store.ActorByKey(ctx, string(key))
	switch {
	case store.Missing(err):
		return knownActor{}, AuthFailed()
	case err != nil:
		return knownActor{}, fmt.Errorf("find access key: %w", err)
	case !row.IsActive || row.UserStatus != "active" || !row.DomainActive || knownActor{ends: row.ExpiresAt}.ended(s.d.Clock()):
		return knownActor{}, AuthFailed()
	}
	secret, err := s.d.Seal.Open(row.SecretSealed, keypairPurpose(row.AccessKey))
	if err != nil {
		return knownActor{}, fmt.Errorf("open secret key of %s: %w", key, err)
	}
	return knownActor{ActorOf(row), secret, row.ExpiresAt}, nil
}

// ActorOf is the actor that a keypair stands for.
func ActorOf(row dbgen.ActorByKeyRow) authz.Actor {
	a := authz.Actor{
		UserID: cluster.UserID(row.UserID), Email: row.Email, Username: row.Username, FullName: row.FullName,
		Role: authz.Role(row.Role), Domain: row.DomainName, AccessKey: cluster.AccessKey(row.AccessKey),
		KeypairAdmin: row.IsAdmin, RateLimit: int(row.RateLimit), AllowedClientIP: clientaddr.ParseNetworks(row.AllowedClientIp),
		AllowedRegistries: row.AllowedDockerRegistries,
	}
	for _, p := range row.Projects {
		a.Projects = append(a.Projects, cluster.ProjectID(p))
	}
	for _, p := range row.Leads {
		a.Leads = append(a.Leads, cluster.ProjectID(p))
	}
	return a
}

// LoginKeypair is what a password login answers.
type LoginKeypair struct {
	AccessKey cluster.AccessKey
	SecretKey seal.Secret
	Role      authz.Role
	Status    string // of the user: active
	// changed is when the password was set that was checked, expires when it is too old for a login.
	changed, expires *time.Time
	// elsewhere: a directory keeps the password, and knows how old it may be.
	elsewhere bool
}

// Authorize checks a password (public). Unknown users, wrong passwords and inactive users are Unauthenticated alike.
func (s *Service) Authorize(ctx context.Context, domain, email string, password seal.Secret) (LoginKeypair, error) {
	row, err := s.d.Store.UserForLogin(ctx, email)
	if err != nil && !store.Missing(err) {
		return LoginKeypair{}, fmt.Errorf("find user: %w", err)
	}
	if row.LoginDirectory != nil || err != nil && s.d.Directory != nil {
		return s.atDirectory(ctx, row, domain, email, password)
	}
	hash := ""
	if err == nil && row.PasswordHash != nil && row.Status == "active" && row.DomainActive && row.DomainName == domain {
		hash = *row.PasswordHash
	}
	ok, renew, err := s.passwords.Check(ctx, password, hash)
	if err != nil {
		return LoginKeypair{}, fmt.Errorf("check password: %w", err)
	}
	if !ok || row.AccessKey == "" {
		return LoginKeypair{}, AuthFailed()
	}
	if renew {
		if fresh, err := s.passwords.Hash(ctx, password); err == nil {
			if err := s.d.Store.SetPasswordHash(ctx, row.ID, &fresh); err != nil {
				s.d.Log.Warn("could not renew a password hash", "user", row.Email, "error", err)
			}
		}
	}
	secret, err := s.d.Seal.Open(row.SecretSealed, keypairPurpose(row.AccessKey))
	if err != nil {
		return LoginKeypair{}, fmt.Errorf("open secret key: %w", err)
	}
	return keypairOf(row, secret), nil
}

func keypairOf(row dbgen.UserForLoginRow, secret seal.Secret) LoginKeypair {
	return LoginKeypair{AccessKey: cluster.AccessKey(row.AccessKey), SecretKey: secret, Role: authz.Role(row.Role), Status: row.Status,
		changed: row.PasswordChangedAt}
}

// Roles are an actor's roles as the wire tells them.
type Roles struct {
	Global string  // superadmin or user
	Domain string  // admin or user
	Group  *string // user when a member of the asked project
}

// Roles tells the actor's roles; project ("" for none) is a name or an id.
func (s *Service) Roles(ctx context.Context, a authz.Actor, project string) (Roles, error) {
	if err := authz.Authenticated(a); err != nil {
		return Roles{}, err
	}
	r := Roles{Global: "user", Domain: "user"}
	if a.Superadmin() {
		r.Global = "superadmin"
	}
	if authz.Domains.May(a, authz.Change, authz.Object{Domain: a.Domain}) {
		r.Domain = "admin"
	}
	if project == "" {
		return r, nil
	}
	p, err := s.FindProject(ctx, project, a.Domain)
	if err != nil {
		return Roles{}, err
	}
	if !slices.Contains(a.Projects, cluster.ProjectID(p.ID)) {
		return Roles{}, authz.NotFound(projectNoun, project)
	}
	member := "user"
	r.Group = &member
	return r, nil
}

// UpdatePassword replaces the actor's password after checking the old one.
func (s *Service) UpdatePassword(ctx context.Context, a authz.Actor, old, fresh seal.Secret) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "user.change-password", a.Email)
	defer end(&err)
	if err := authz.InPerson(a, "change a password"); err != nil {
		return err
	}
	_, err = s.changePassword(ctx, a, old, fresh)
	return err
}

// UpdateFullName renames a person; email "" is the actor.
func (s *Service) UpdateFullName(ctx context.Context, a authz.Actor, email, fullName string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "user.rename", email)
	defer end(&err)
	if err := authz.Authenticated(a); err != nil {
		return err
	}
	if email == "" {
		email = a.Email
	}
	o := authz.Object{Name: email, Owner: a.UserID}
	if email != a.Email {
		u, err := s.UserByEmail(ctx, email)
		if err != nil {
			return err
		}
		o = authz.Object{Name: email, Owner: cluster.UserID(u.ID), OwnerRole: authz.Role(u.Role), Domain: u.DomainName}
	}
	if err := authz.Users.Check(a, authz.Change, o); err != nil {
		return err
	}
	if len(fullName) > 255 {
		return fault.Invalidf("the name has more than 255 bytes")
	}
	n, err := s.d.Store.SetFullName(ctx, email, fullName)
	if err != nil {
		return fmt.Errorf("store name: %w", err)
	}
	if n == 0 {
		return authz.NotFound(userNoun, email)
	}
	return nil
}

// SSHKeypair is the keypair that sessions trust.
type SSHKeypair struct {
	Public  string
	Private seal.Secret // only when just generated
}

// SSHKeypair returns the public half; empty when there is none.
func (s *Service) SSHKeypair(ctx context.Context, a authz.Actor) (SSHKeypair, error) {
	if err := authz.Authenticated(a); err != nil {
		return SSHKeypair{}, err
	}
	row, err := s.d.Store.GetSSHKeypair(ctx, string(a.AccessKey))
	if err != nil {
		return SSHKeypair{}, fmt.Errorf("read ssh keypair: %w", err)
	}
	if row.SshPublicKey == nil {
		return SSHKeypair{}, nil
	}
	return SSHKeypair{Public: *row.SshPublicKey}, nil
}

// GenerateSSHKeypair replaces the keypair by a fresh ed25519 one and returns both halves.
func (s *Service) GenerateSSHKeypair(ctx context.Context, a authz.Actor) (_ SSHKeypair, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "keypair.generate-ssh", string(a.AccessKey))
	defer end(&err)
	if err := authz.Keypairs.Need(a, authz.Change, authz.Object{Owner: a.UserID}, "change an SSH keypair"); err != nil {
		return SSHKeypair{}, err
	}
	k, err := newSSHKeypair(s)
	if err != nil {
		return SSHKeypair{}, fmt.Errorf("generate ssh keypair: %w", err)
	}
	return k, s.storeSSHKeypair(ctx, a, k)
}

// SetSSHKeypair stores a keypair that the user brings.
func (s *Service) SetSSHKeypair(ctx context.Context, a authz.Actor, public string, private seal.Secret) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "keypair.set-ssh", string(a.AccessKey))
	defer end(&err)
	if err := authz.Keypairs.Need(a, authz.Change, authz.Object{Owner: a.UserID}, "change an SSH keypair"); err != nil {
		return err
	}
	fields := strings.Fields(public)
	if len(public) > 16<<10 || len(fields) < 2 || strings.ContainsAny(strings.TrimSpace(public), "\n\r") {
		return fault.Invalidf("this is not an OpenSSH public key").WithNext("send one line such as %q", "ssh-ed25519 AAAA... you@host")
	}
	if blob, err := base64.StdEncoding.DecodeString(fields[1]); err != nil || len(blob) < 8 ||
		!strings.HasPrefix(string(blob[4:]), fields[0]) {
		return fault.Invalidf("this is not an OpenSSH public key")
	}
	if block, _ := pem.Decode([]byte(private)); block == nil || len(private) > 64<<10 || !strings.HasSuffix(block.Type, "PRIVATE KEY") {
		return fault.Invalidf("this is not a private key in PEM form")
	}
	return s.storeSSHKeypair(ctx, a, SSHKeypair{Public: strings.TrimSpace(public), Private: private})
}

func (s *Service) storeSSHKeypair(ctx context.Context, a authz.Actor, k SSHKeypair) error {
	sealed, err := s.d.Seal.Seal(k.Private, sshPurpose(string(a.AccessKey)))
	if err != nil {
		return fmt.Errorf("seal ssh key: %w", err)
	}
	if err := s.d.Store.SetSSHKeypair(ctx, string(a.AccessKey), &k.Public, sealed); err != nil {
		return fmt.Errorf("store ssh keypair: %w", err)
	}
	return nil
}

// newSSHKeypair writes an unencrypted OpenSSH private key (the format of PROTOCOL.key) by hand,
// which saves a dependency for forty bytes of framing.
func newSSHKeypair(s *Service) (SSHKeypair, error) {
	pub, priv, err := ed25519.GenerateKey(s.d.Random)
	if err != nil {
		return SSHKeypair{}, err
	}
	const kind = "ssh-ed25519"
	str := func(b, v []byte) []byte { return append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...) }
	blob := str(str(nil, []byte(kind)), pub)
	inner := make([]byte, 8) // two equal check words; they matter only for encrypted keys
	inner = str(str(str(str(inner, []byte(kind)), pub), priv), []byte("berth"))
	for i := byte(1); len(inner)%8 != 0; i++ {
		inner = append(inner, i)
	}
	out := append([]byte("openssh-key-v1\x00"), str(str(str(nil, []byte("none")), []byte("none")), nil)...)
	out = binary.BigEndian.AppendUint32(out, 1)
	out = str(str(out, blob), inner)
	text := pem.EncodeToMemory(&pem.Block{Type: "OPENSSH PRIVATE KEY", Bytes: out})
	return SSHKeypair{Public: kind + " " + base64.StdEncoding.EncodeToString(blob) + " berth", Private: seal.Secret(text)}, nil
}
