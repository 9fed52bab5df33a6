package seal

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"io"
	"runtime"
	"strings"

	"golang.org/x/crypto/argon2"

	"berth.dev/berth/internal/fault"
)

// Cost is what hashing one password with argon2id (RFC 9106) takes. Stored hashes carry the cost that they were made with.
type Cost struct {
	// Memory is in KiB.
	Memory uint32
	// Time is the number of passes over the memory.
	Time uint32
}

// DefaultCost is what the zero Cost means, in production always. Tests that are not about passwords choose less.
func DefaultCost() Cost { return Cost{Memory: 19 * 1024, Time: 2} }

const (
	argonThreads = 1
	argonKey     = 32
	argonSalt    = 16
	// mostAtOnce bounds the memory of machines with many processors: so many hashes take 152 MiB.
	mostAtOnce = 8
	// maxPassword bounds the work that a caller can ask for.
	maxPassword = 1024
)

// Passwords hashes and checks passwords, a few at a time: each takes tens of
// megabytes and milliseconds, so callers wait for their turn.
type Passwords struct {
	// turns bounds all computations, checks those that anybody can ask for by trying to log in: half of the processors are left to
	// everything else, however many try.
	turns, checks chan struct{}
	cost          Cost
	random        io.Reader
	dummy         string
}

// NewPasswords allows so many computations at once, and half as many checks; 0 means one for each processor, at most mostAtOnce.
func NewPasswords(atOnce int, cost Cost, random io.Reader) *Passwords {
	if atOnce <= 0 {
		atOnce = min(runtime.GOMAXPROCS(0), mostAtOnce)
	}
	if cost == (Cost{}) {
		cost = DefaultCost()
	}
	p := &Passwords{turns: make(chan struct{}, atOnce), checks: make(chan struct{}, max(1, atOnce/2)), cost: cost, random: random}
	p.dummy = cost.encode(make([]byte, argonSalt), make([]byte, argonKey))
	return p
}

// Hash returns the PHC text of a password.
func (p *Passwords) Hash(ctx context.Context, password Secret) (string, error) {
	if len(password) == 0 || len(password) > maxPassword {
		return "", fault.Invalidf("a password must have 1 to %d bytes", maxPassword)
	}
	salt := make([]byte, argonSalt)
	if _, err := io.ReadFull(p.random, salt); err != nil {
		return "", fmt.Errorf("make salt: %w", err)
	}
	if err := enter(ctx, p.turns); err != nil {
		return "", err
	}
	defer leave(p.turns)
	return p.cost.encode(salt, argon2.IDKey([]byte(password), salt, p.cost.Time, p.cost.Memory, argonThreads, argonKey)), nil
}

// Check compares a password with a hash. An empty hash (no such user, no password set) takes as long as any
// other and never matches. renew says that the hash should be made again with today's cost.
func (p *Passwords) Check(ctx context.Context, password Secret, hash string) (ok, renew bool, err error) {
	if len(password) > maxPassword {
		return false, false, nil
	}
	known := hash != ""
	if !known {
		hash = p.dummy
	}
	m, t, threads, salt, want, err := decode(hash)
	if err != nil {
		return false, false, err
	}
	for _, bound := range []chan struct{}{p.checks, p.turns} {
		if err := enter(ctx, bound); err != nil {
			return false, false, err
		}
		defer leave(bound)
	}
	got := argon2.IDKey([]byte(password), salt, t, m, threads, uint32(len(want)))
	same := subtle.ConstantTimeCompare(got, want) == 1
	return same && known, same && (Cost{m, t} != p.cost || threads != argonThreads), nil
}

func enter(ctx context.Context, bound chan struct{}) error {
	select {
	case bound <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for a turn to hash a password: %w", ctx.Err())
	}
}

func leave(bound chan struct{}) { <-bound }

func (c Cost) encode(salt, key []byte) string {
	b := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, c.Memory, c.Time, argonThreads,
		b.EncodeToString(salt), b.EncodeToString(key))
}

func decode(phc string) (memory, time uint32, threads uint8, salt, key []byte, err error) {
	bad := fault.New(fault.Internal, "a stored password hash is damaged")
	part := strings.Split(phc, "$")
	if len(part) != 6 || part[1] != "argon2id" || part[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return 0, 0, 0, nil, nil, bad
	}
	if _, err := fmt.Sscanf(part[3], "m=%d,t=%d,p=%d", &memory, &time, &threads); err != nil || memory > 1<<20 || time == 0 || time > 64 ||
		threads == 0 {
		return 0, 0, 0, nil, nil, bad
	}
	b := base64.RawStdEncoding
	if salt, err = b.DecodeString(part[4]); err != nil || len(salt) == 0 {
		return 0, 0, 0, nil, nil, bad
	}
	if key, err = b.DecodeString(part[5]); err != nil || len(key) < 16 {
		return 0, 0, 0, nil, nil, bad
	}
	return memory, time, threads, salt, key, nil
}
