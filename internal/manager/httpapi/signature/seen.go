package signature

import (
	"context"
	"strconv"
	"time"

	"github.com/valkey-io/valkey-go"
)

// RedisSeen keeps in Redis which signed requests were received; it is a Shared.
type RedisSeen struct {
	client valkey.Client
	script *valkey.Lua
}

// seenScript keeps ARGV[1] under KEYS[1] for ARGV[2] milliseconds unless something is there, and returns what is.
const seenScript = `
local first = redis.call('GET', KEYS[1])
if first then return first end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]`

// NewRedisSeen uses client; the caller closes it.
func NewRedisSeen(client valkey.Client) *RedisSeen {
	return &RedisSeen{client: client, script: valkey.NewLuaScript(seenScript)}
}

// FirstSight implements signature.Shared.
func (s *RedisSeen) FirstSight(ctx context.Context, key, value string, life time.Duration) (string, error) {
	return s.script.Exec(ctx, s.client, []string{"berth:seen:" + key}, []string{value, strconv.FormatInt(life.Milliseconds(), 10)}).ToString()
}
