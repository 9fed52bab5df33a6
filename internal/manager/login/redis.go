package login

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/valkey-io/valkey-go"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// redisPatience bounds every exchange with Redis.
const redisPatience = 2 * time.Second

// Redis keeps logins in Redis, for all managers of a cluster. All logins of a user are one hash: the hash of a token leads to the record.
type Redis struct {
	client valkey.Client
	prefix string
	now    func() time.Time
	// patience is how long Redis is waited for.
	patience time.Duration

	open, replace *valkey.Lua
}

// openScript adds the record ARGV[2] under the field ARGV[1] of the hash KEYS[1], after it removed what has expired by ARGV[3]. ARGV[4]
// is how many records there may be, ARGV[5] whether the oldest make room (1) or not (0), ARGV[6] when all of it expires. Times are in
// milliseconds since 1970. It returns 1, or 0 when there is no room.
const openScript = `
local now, most = tonumber(ARGV[3]), tonumber(ARGV[4])
local live, all = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local ok, r = pcall(cjson.decode, all[i + 1])
  if not ok or tonumber(r.until_ms or 0) <= now then
    redis.call('HDEL', KEYS[1], all[i])
  else
    live[#live + 1] = {all[i], tonumber(r.from_ms or 0), tonumber(r.until_ms)}
  end
end
if #live >= most then
  if ARGV[5] == '0' then return 0 end
  table.sort(live, function(a, b) return a[2] < b[2] end)
  for i = 1, #live - most + 1 do redis.call('HDEL', KEYS[1], live[i][1]) end
end
local last = tonumber(ARGV[6])
for _, r in ipairs(live) do if r[3] > last then last = r[3] end end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', last))
return 1`

// replaceScript writes the record ARGV[2] over the one under ARGV[1], if there is one, and keeps the hash until ARGV[3] at least.
const replaceScript = `
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) - tonumber(ARGV[4]) then redis.call('PEXPIREAT', KEYS[1], ARGV[3]) end
return 1`

// NewRedis uses client, which the caller closes; prefix separates clusters that share a Redis.
func NewRedis(client valkey.Client, prefix string, now func() time.Time) *Redis {
	return &Redis{client: client, prefix: prefix + "logins:", now: now, patience: redisPatience,
		open: valkey.NewLuaScript(openScript), replace: valkey.NewLuaScript(replaceScript)}
}

// record is a session as Redis has it; the scripts read the numbers.
type record struct {
	Session
	From  int64 `json:"from_ms"`
	Until int64 `json:"until_ms"`
}

func encode(s Session) (string, error) {
	raw, err := json.Marshal(record{s, s.Created.UnixMilli(), s.Expires.UnixMilli()})
	return string(raw), err
}

func (r *Redis) key(u cluster.UserID) string { return r.prefix + string(u) }

func (r *Redis) away(err error) error {
	return fault.Unavailablef("the logins cannot be reached").WithCause(err).WithNext("try again in some seconds; keypairs work meanwhile")
}

func milliseconds(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

// Open implements Keeper.
func (r *Redis) Open(ctx context.Context, t Token, s Session, most int, force bool) error {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	if most <= 0 || most > MaxSessions {
		most, force = MaxSessions, true
	}
	text, err := encode(s)
	if err != nil {
		return err
	}
	evict := "0"
	if force {
		evict = "1"
	}
	done, err := r.open.Exec(ctx, r.client, []string{r.key(t.user)},
		[]string{t.hash, text, milliseconds(r.now()), strconv.Itoa(most), evict, milliseconds(s.Expires)}).AsInt64()
	switch {
	case err != nil:
		return r.away(err)
	case done == 0:
		return ErrFull
	}
	return nil
}

// Find implements Keeper.
func (r *Redis) Find(ctx context.Context, t Token) (Session, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	text, err := r.client.Do(ctx, r.client.B().Hget().Key(r.key(t.user)).Field(t.hash).Build()).ToString()
	switch {
	case valkey.IsValkeyNil(err):
		return Session{}, false, nil
	case err != nil:
		return Session{}, false, r.away(err)
	}
	var rec record
	if json.Unmarshal([]byte(text), &rec) != nil || !r.now().Before(rec.Expires) {
		return Session{}, false, nil
	}
	return rec.Session, true, nil
}

// Replace implements Keeper.
func (r *Redis) Replace(ctx context.Context, t Token, s Session) error {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	text, err := encode(s)
	if err != nil {
		return err
	}
	err = r.replace.Exec(ctx, r.client, []string{r.key(t.user)},
		[]string{t.hash, text, milliseconds(s.Expires), milliseconds(r.now())}).Error()
	if err != nil {
		return r.away(err)
	}
	return nil
}

// Remove implements Keeper.
func (r *Redis) Remove(ctx context.Context, t Token) error {
	_, err := r.remove(ctx, t.user, t.hash)
	return err
}

func (r *Redis) remove(ctx context.Context, u cluster.UserID, fields ...string) (int, error) {
	if len(fields) == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	n, err := r.client.Do(ctx, r.client.B().Hdel().Key(r.key(u)).Field(fields...).Build()).AsInt64()
	if err != nil {
		return 0, r.away(err)
	}
	return int(n), nil
}

func (r *Redis) all(ctx context.Context, u cluster.UserID) (map[string]Session, error) {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	found, err := r.client.Do(ctx, r.client.B().Hgetall().Key(r.key(u)).Build()).AsStrMap()
	if err != nil {
		return nil, r.away(err)
	}
	out := map[string]Session{}
	for field, text := range found {
		var rec record
		if json.Unmarshal([]byte(text), &rec) == nil && r.now().Before(rec.Expires) {
			out[field] = rec.Session
		}
	}
	return out, nil
}

// List implements Keeper.
func (r *Redis) List(ctx context.Context, u cluster.UserID) ([]Session, error) {
	found, err := r.all(ctx, u)
	if err != nil {
		return nil, err
	}
	list := make([]Session, 0, len(found))
	for _, s := range found {
		list = append(list, s)
	}
	return newestFirst(list), nil
}

// End implements Keeper.
func (r *Redis) End(ctx context.Context, u cluster.UserID, id string) (int, error) {
	found, err := r.all(ctx, u)
	if err != nil {
		return 0, err
	}
	var fields []string
	for field, s := range found {
		if id == "" || s.ID == id {
			fields = append(fields, field)
		}
	}
	return r.remove(ctx, u, fields...)
}
