package simulation

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/storage"
)

// The one host of simulated folders.
const (
	folderProxy  = "p"
	folderVolume = "v"
	folderHost   = folderProxy + ":" + folderVolume
)

// proxies are a storage proxy in memory. It keeps what the real one keeps on disk: folders, limits and tasks survive every fault. Requests
// get lost before or after they are carried out, and the manager that asks may die at both places.
type proxies struct {
	seed uint64

	mu      sync.Mutex
	faulty  bool
	away    bool
	dead    bool              // the manager that asks was killed
	folders map[string]string // what is in each folder, by vfid
	tasks   map[string]*folderTask
	asked   map[string]int // by request, for the choice of faults
	events  []string       // faults since they were last taken
}

// folderTask is background work of the proxy: done after so many more looks.
type folderTask struct {
	looks    int
	from, to string // of a copy
}

func newProxies(seed uint64) *proxies {
	return &proxies{seed: seed, folders: map[string]string{}, tasks: map[string]*folderTask{}, asked: map[string]int{}, faulty: true}
}

func (p *proxies) View() (live, gone []storage.Presence) {
	one := storage.Presence{Proxy: folderProxy, Node: "n", ClientURL: "http://clients", Volumes: []storage.Volume{{Name: folderVolume,
		Backend: "posix", Path: "/v", CapacityBytes: 100, Capabilities: []string{"vfolder"}}}}
	return []storage.Presence{one}, nil
}

func (p *proxies) ClientURL(string) (string, error) { return "http://clients/", nil }

// draw is a number below n that follows from the seed and from what is asked how often, whatever was asked meanwhile.
func (p *proxies) draw(n int, what string) int {
	p.asked[what]++
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d", p.seed, what, p.asked[what])
	x := h.Sum64()
	x ^= x >> 33 // the low bits of FNV alone repeat
	x *= 0xff51afd7ed558ccd
	return int((x ^ x>>33) % uint64(n))
}

// killed is what a use case panics with when its manager dies under it: nothing of it is done any more.
type killed struct{}

// perCent of requests to the proxy go wrong in each of four ways.
const perCent = 5

func (p *proxies) Do(ctx context.Context, _, method, path string, request, reply any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	what := method + " " + path + fmt.Sprint(request)
	if p.dead {
		return errDead
	}
	if p.away {
		return fault.Unavailablef("the storage proxy is away")
	}
	fate := 100
	if p.faulty {
		fate = p.draw(100, what)
	}
	switch {
	case fate < perCent:
		p.events = append(p.events, "lost: "+what)
		return fault.Unavailablef("the request was lost")
	case fate < 2*perCent:
		return p.kill(ctx, "killed before "+what)
	}
	answer, err := p.act(method, path, request)
	switch {
	case fate < 3*perCent:
		p.events = append(p.events, "answer lost: "+what)
		return fault.Unavailablef("the answer was lost")
	case fate < 4*perCent:
		return p.kill(ctx, "killed after "+what)
	}
	if err != nil || reply == nil {
		return err
	}
	raw, err := json.Marshal(answer)
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return json.Unmarshal(raw, reply)
}

type loopKey struct{}

// kill ends the manager that asks. Passes of its loop ask from goroutines of their own and write through commit, which says so, too.
func (p *proxies) kill(ctx context.Context, when string) error {
	p.events = append(p.events, when)
	p.dead = true
	if ctx.Value(loopKey{}) == nil {
		panic(killed{})
	}
	return errDead
}

func (p *proxies) act(method, path string, request any) (any, error) {
	if id, isTask := strings.CutPrefix(path, storage.PathTask); isTask {
		t := p.tasks[id]
		if t == nil {
			return nil, fault.NotFoundf("no such task")
		}
		if t.looks--; t.looks > 0 {
			return storage.Task{ID: id, State: storage.TaskRunning, Total: 3}, nil
		}
		if content, there := p.folders[t.from]; there {
			p.folders[t.to] = content
		}
		t.from = ""
		return storage.Task{ID: id, State: storage.TaskDone, Current: 3, Total: 3}, nil
	}
	switch path {
	case storage.PathFolderCreate:
		id := request.(storage.FolderRequest).VFID
		if _, there := p.folders[id]; !there {
			p.folders[id] = id // what its owner then writes there
		}
	case storage.PathFolderDelete:
		r := request.(storage.FolderRequest)
		delete(p.folders, r.VFID)
		p.begin(r.TaskID, "", "")
	case storage.PathFolderClone:
		r := request.(storage.CloneRequest)
		if _, there := p.folders[r.SrcVFID]; !there {
			return nil, fault.NotFoundf("the source is gone")
		}
		p.begin(r.TaskID, r.SrcVFID, r.DstVFID)
	case storage.PathFolderUsage:
		return storage.UsageReply{FileCount: 1, UsedBytes: 1, Complete: true}, nil
	case storage.PathScope:
		if method == "GET" {
			return storage.ScopeReply{UsedBytes: new(int64(1))}, nil
		}
	case storage.PathScopeQuota:
	default:
		return nil, fault.Invalidf("the simulation knows no %s %s", method, path)
	}
	return nil, nil
}

func (p *proxies) begin(id, from, to string) {
	if p.tasks[id] == nil {
		p.tasks[id] = &folderTask{looks: 1 + p.draw(4, "looks "+id), from: from, to: to}
	}
}
