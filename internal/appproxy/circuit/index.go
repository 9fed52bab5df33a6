package circuit

import (
	"hash/maphash"
	"iter"
	"maps"
)

// shards is the number of parts of an index. A change copies one part and the list of parts instead of the whole index.
const shards = 512

var seed = maphash.MakeSeed()

// index is a map that is immutable once its table is published. set and drop work on an index between edit and seal; they copy
// a shard before its first change.
type index[K comparable] struct {
	shard *[shards]map[K]*Circuit
	own   *[shards / 64]uint64 // which shards are copied and may be changed; nil once the table is published
	n     int
}

func (x *index[K]) get(k K) *Circuit {
	if x.n == 0 {
		return nil
	}
	return x.shard[maphash.Comparable(seed, k)%shards][k]
}

// edit returns an index with the same content that may be changed.
func (x *index[K]) edit() index[K] {
	next := index[K]{shard: new([shards]map[K]*Circuit), own: new([shards / 64]uint64), n: x.n}
	if x.shard != nil {
		*next.shard = *x.shard
	}
	return next
}

// seal ends the changes.
func (x *index[K]) seal() { x.own = nil }

func (x *index[K]) part(k K) map[K]*Circuit {
	i := maphash.Comparable(seed, k) % shards
	if bit := uint64(1) << (i % 64); x.own[i/64]&bit == 0 {
		x.own[i/64] |= bit
		fresh := make(map[K]*Circuit, len(x.shard[i])+1)
		maps.Copy(fresh, x.shard[i])
		x.shard[i] = fresh
	}
	return x.shard[i]
}

func (x *index[K]) set(k K, c *Circuit) {
	part := x.part(k)
	if part[k] == nil {
		x.n++
	}
	part[k] = c
}

// drop removes a key that is there.
func (x *index[K]) drop(k K) {
	delete(x.part(k), k)
	x.n--
}

func (x *index[K]) all() iter.Seq2[K, *Circuit] {
	return func(yield func(K, *Circuit) bool) {
		if x.n == 0 {
			return
		}
		for _, part := range x.shard {
			for k, c := range part {
				if !yield(k, c) {
					return
				}
			}
		}
	}
}
