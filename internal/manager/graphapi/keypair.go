package graphapi

import (
	"context"
	"math"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/graphapi/model"
	"berth.dev/berth/internal/manager/tenancy"
)

func (m mutations) CreateKeypair(ctx context.Context, user string, p model.KeyPairInput) (*model.CreateKeyPairReply, error) {
	props := tenancy.KeypairProps{IsActive: p.IsActive, ResourcePolicy: &p.ResourcePolicy, RateLimit: &p.RateLimit,
		ConcurrencyLimit: p.ConcurrencyLimit}
	if value(p.IsAdmin) { // the input's default is false, also for administrators
		props.IsAdmin = p.IsAdmin
	}
	return keypairMade(m.tenancy.CreateKeypair(ctx, m.who(ctx), user, props))
}

func (m mutations) RotateKeypair(ctx context.Context, key *string, overlap *int) (*model.CreateKeyPairReply, error) {
	seconds := max(min(value(overlap), math.MaxInt32), math.MinInt32) // what is too much is refused, and does not overflow
	return keypairMade(m.tenancy.RotateKeypair(ctx, m.who(ctx), cluster.AccessKey(value(key)), time.Duration(seconds)*time.Second))
}

func keypairMade(k *tenancy.Keypair, err error) (*model.CreateKeyPairReply, error) {
	r, err := reply(err)
	if err != nil {
		return nil, err
	}
	out := &model.CreateKeyPairReply{Ok: r.Ok, Msg: r.Msg}
	if k != nil {
		out.Keypair = toKeypair(k)
	}
	return out, nil
}

func (m mutations) ModifyKeypair(ctx context.Context, key string, p model.ModifyKeyPairInput) (*model.MutationReply, error) {
	return reply(m.tenancy.ModifyKeypair(ctx, m.who(ctx), cluster.AccessKey(key), tenancy.KeypairProps{IsActive: p.IsActive,
		IsAdmin: p.IsAdmin, ResourcePolicy: p.ResourcePolicy, RateLimit: p.RateLimit, ConcurrencyLimit: p.ConcurrencyLimit}))
}

func (m mutations) DeleteKeypair(ctx context.Context, key string) (*model.MutationReply, error) {
	return reply(m.tenancy.DeleteKeypair(ctx, m.who(ctx), cluster.AccessKey(key)))
}
