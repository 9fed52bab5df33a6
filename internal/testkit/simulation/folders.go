package simulation

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
)

// How many folders an owner, and the project, may have.
const (
	maxUserFolders    = 4
	maxProjectFolders = 5
)

// folderSim is one run of what users do with folders: the use cases and the loop of the real manager on a real PostgreSQL, a storage proxy
// in memory, and faults of both. There is no plan with instants as for sessions: nothing happens at the same time but the steps of a pass.
type folderSim struct {
	db      *Database
	proxies *proxies
	rand    *rand.Rand
	now     time.Time
	lives   uint64 // of managers
	ids     rand.ChaCha8
	nouns   *nouns.Set
	loop    *folder.Loop
	project string
	known   map[string]*knownFolder // what users were told, by id
	history []string
	steps   int
	took    map[string]int // answers, by use case
}

// knownFolder is what users were told of a folder.
type knownFolder struct {
	owner   int // among the owners of the database; -1 is the project
	content string
	copied  bool
	trashed bool
	shares  map[string]string // permission by user
}

// RunFolders runs what a seed decides and returns the promise that was broken, "" when all held, with what happened.
func RunFolders(t testing.TB, db *Database, seed uint64) (broken string, history []string, took map[string]int) {
	t.Helper()
	s := &folderSim{db: db, proxies: newProxies(seed), rand: rand.New(rand.NewPCG(seed, 0xf01d)), known: map[string]*knownFolder{},
		now: time.Now().Add(-12 * time.Hour).Truncate(time.Second), took: map[string]int{}}
	if err := db.reset(s.now); err != nil {
		t.Fatal(err)
	}
	err := db.do(s.now, func(ctx context.Context) error {
		limits := fmt.Sprintf(folderLimits, maxUserFolders, maxProjectFolders, folderHost, permissions())
		if _, err := db.store.Pool().Exec(ctx, limits); err != nil {
			return err
		}
		return db.store.Pool().QueryRow(ctx, `SELECT project_id::text FROM project_members WHERE user_id = $1`,
			string(db.owners[1].actor.UserID)).Scan(&s.project)
	})
	if err != nil {
		t.Fatal(err)
	}
	broken = s.run()
	return broken, s.history, s.took
}

const folderLimits = `
UPDATE user_resource_policies SET max_vfolder_count = %[1]d;
UPDATE project_resource_policies SET max_vfolder_count = %[2]d;
UPDATE domains SET allowed_vfolder_hosts = '{"%[3]s": [%[4]s]}'`

func permissions() string {
	var out []string
	for _, p := range folder.AllPermissions() {
		out = append(out, fmt.Sprintf("%q", p))
	}
	return strings.Join(out, ",")
}

func (s *folderSim) note(format string, args ...any) {
	s.history = append(s.history, fmt.Sprintf("%4d  ", s.steps)+fmt.Sprintf(format, args...))
}

// boot starts a manager, in place of one that died.
func (s *folderSim) boot() error {
	s.lives++
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(s.rand.Uint32())
	}
	s.ids.Seed(seed)
	s.proxies.dead = false
	d := s.db.deps
	d.Clock, d.IDs, d.Proxies, d.Log = func() time.Time { return s.now }, tenancy.RandomIDs(&s.ids), s.proxies, slog.New(slog.DiscardHandler)
	var err error
	if s.nouns, err = nouns.New(d); err != nil {
		return fmt.Errorf("start a manager: %w", err)
	}
	s.loop = s.nouns.Folders.NewLoop(s.commit)
	return nil
}

// commit is the leader's transaction. The leader may die before or after it.
func (s *folderSim) commit(ctx context.Context, fn func(ctx context.Context, tx *store.Tx) error) error {
	p := s.proxies
	die := func(when string) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.dead && p.faulty && p.draw(100, when) < 2 {
			p.dead = true
			p.events = append(p.events, when)
		}
		return p.dead
	}
	if die("killed before a transaction") {
		return errDead
	}
	if err := s.db.store.Tx(ctx, fn); err != nil {
		return err
	}
	if die("killed after a transaction") {
		return errDead
	}
	return nil
}

// do runs one step of a manager. Whoever asked learns nothing when it dies; the next step has a new one.
func (s *folderSim) do(what string, fn func(ctx context.Context) error) (err error) {
	err = s.db.do(s.now, func(ctx context.Context) (err error) {
		defer func() {
			switch r := recover().(type) {
			case nil:
			case killed:
				err = errDead
			default:
				panic(r)
			}
		}()
		if s.nouns == nil || s.proxies.dead {
			if err := s.boot(); err != nil {
				return err
			}
		}
		return fn(ctx)
	})
	s.db.wakes.Take()
	if s.proxies.dead && err == nil {
		err = errDead // it died when all was done and could not say so
	}
	slices.Sort(s.proxies.events) // steps of a pass have no order
	for _, e := range s.proxies.events {
		s.note("  %s", e)
	}
	s.proxies.events = nil
	s.note("%s: %v", what, err)
	return err
}

func (s *folderSim) run() string {
	for s.steps = range 60 {
		s.now = s.now.Add(time.Duration(s.rand.Int64N(int64([]time.Duration{time.Second, 10 * time.Second, 2 * time.Minute}[s.rand.IntN(3)]))))
		s.proxies.away = s.rand.IntN(12) == 0
		if why := s.step(); why != "" {
			return why
		}
		if s.rand.IntN(3) > 0 {
			_ = s.pass() // what goes wrong in a pass is done by a later one
		}
		if why := s.judge(); why != "" {
			return why
		}
	}
	return s.finish()
}

func (s *folderSim) pass() error {
	return s.do("pass", func(ctx context.Context) error {
		_, err := s.loop.Pass(context.WithValue(ctx, loopKey{}, true))
		return err
	})
}

// step is what one user does.
func (s *folderSim) step() string {
	owner := s.rand.IntN(owners+1) - 1
	actor := s.db.owners[max(owner, 0)].actor // the administrator acts for the project
	name, project := fmt.Sprintf("folder-%d", s.steps), ""
	if owner < 0 {
		project = s.project
	}
	switch n := s.rand.IntN(12); {
	case n < 4 || len(s.known) == 0:
		return s.create(name, owner, "", func(ctx context.Context) (folder.Folder, error) {
			return s.nouns.Folders.Create(ctx, actor, folder.CreateInput{Name: name, Host: folderHost, Project: project, Cloneable: true})
		})
	case n < 6:
		id, k := s.pick(func(k *knownFolder) bool { return !k.trashed })
		if id == "" {
			return ""
		}
		as := s.actorOf(k)
		project = ""
		if owner = k.owner; owner < 0 {
			project = s.project
		}
		return s.create(name, owner, id, func(ctx context.Context) (folder.Folder, error) {
			out, _, err := s.nouns.Folders.Clone(ctx, as, id, folder.CloneInput{Name: name, Project: project, Cloneable: true})
			return out, err
		})
	case n < 8:
		id, k := s.pick(func(k *knownFolder) bool { return k.owner < 0 && !k.trashed })
		if id == "" {
			return ""
		}
		to := s.db.owners[1+s.rand.IntN(owners-1)].actor
		perm := []cluster.MountPermission{cluster.ReadOnly, cluster.ReadWrite}[s.rand.IntN(2)]
		share := s.rand.IntN(3) > 0
		err := s.do(fmt.Sprintf("share %s with %s: %t", short(id), to.Username, share), func(ctx context.Context) (err error) {
			if share {
				_, err = s.nouns.Folders.Share(ctx, s.actorOf(k), id, perm, []string{to.Email})
			} else {
				_, err = s.nouns.Folders.Unshare(ctx, s.actorOf(k), id, []string{to.Email})
			}
			return err
		})
		return s.told("share", err, func() {
			if share {
				k.shares[string(to.UserID)] = string(perm)
			} else {
				delete(k.shares, string(to.UserID))
			}
		}, id)
	case n < 9:
		return s.change("trash", false, func(ctx context.Context, a authz.Actor, id string) error {
			_, err := s.nouns.Folders.Trash(ctx, a, id)
			return err
		}, func(_ string, k *knownFolder) { k.trashed = true })
	case n < 10:
		return s.change("restore", true, func(ctx context.Context, a authz.Actor, id string) error {
			_, err := s.nouns.Folders.Restore(ctx, a, id)
			return err
		}, func(_ string, k *knownFolder) { k.trashed = false })
	default:
		return s.change("delete for good", true, func(ctx context.Context, a authz.Actor, id string) error {
			_, err := s.nouns.Folders.DeleteForever(ctx, a, id)
			return err
		}, func(id string, _ *knownFolder) { delete(s.known, id) })
	}
}

func (s *folderSim) actorOf(k *knownFolder) authz.Actor { return s.db.owners[max(k.owner, 0)].actor }

func (s *folderSim) pick(which func(*knownFolder) bool) (string, *knownFolder) {
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(s.known)) {
		if which(s.known[id]) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return "", nil
	}
	id := ids[s.rand.IntN(len(ids))]
	return id, s.known[id]
}

// create makes a folder or, from is its source then, a copy.
func (s *folderSim) create(name string, owner int, from string, fn func(ctx context.Context) (folder.Folder, error)) string {
	var made folder.Folder
	what := "create"
	if from != "" {
		what = "clone " + short(from)
	}
	err := s.do(fmt.Sprintf("%s %s of %d", what, name, owner), func(ctx context.Context) (err error) {
		made, err = fn(ctx)
		return err
	})
	return s.told(strings.Fields(what)[0], err, func() {
		k := &knownFolder{owner: owner, shares: map[string]string{}, copied: from != ""}
		if k.content = (cluster.FolderRef{Scope: made.Scope, Folder: made.ID}).String(); from != "" {
			k.content = s.known[from].content
		}
		s.known[string(made.ID)] = k
	}, "")
}

func (s *folderSim) change(what string, trashed bool, fn func(ctx context.Context, a authz.Actor, id string) error,
	then func(id string, k *knownFolder)) string {
	id, k := s.pick(func(k *knownFolder) bool { return k.trashed == trashed })
	if id == "" {
		return ""
	}
	err := s.do(what+" "+short(id), func(ctx context.Context) error { return fn(ctx, s.actorOf(k), id) })
	return s.told(what, err, func() { then(id, k) }, id)
}

// told notes what a user was told. Without an answer the rows say what became of the request: it is not carried out later.
func (s *folderSim) told(what string, err error, then func(), id string) string {
	switch {
	case err == nil:
		s.took[what]++
		then()
	case fault.Is(err, fault.Unavailable):
		s.took[what+", no answer"]++
		if id != "" {
			return s.learn(id)
		}
	case fault.Is(err, fault.Exhausted), fault.Is(err, fault.Conflict):
		s.took[what+", refused"]++
	default:
		return fmt.Sprintf("a request is refused: %s: %v", what, err)
	}
	return ""
}

// folderRow is what the database says of a folder.
type folderRow struct {
	ID, Owner, Status, Scope string
	Shares                   map[string]string
}

func (s *folderSim) rows() (out map[string]folderRow, err error) {
	err = s.db.do(s.now, func(ctx context.Context) error {
		rows, err := s.db.store.Pool().Query(ctx, `SELECT f.id::text, coalesce(f.user_id, f.project_id)::text AS owner, f.status,
			f.quota_scope AS scope, coalesce((SELECT jsonb_object_agg(p.user_id::text, p.permission) FROM folder_permissions p
				WHERE p.folder_id = f.id), '{}') AS shares FROM folders f`)
		if err != nil {
			return err
		}
		all, err := pgx.CollectRows(rows, pgx.RowToStructByName[folderRow])
		out = map[string]folderRow{}
		for _, r := range all {
			out[r.ID] = r
		}
		return err
	})
	return out, err
}

// learn looks what became of a request that got no answer.
func (s *folderSim) learn(id string) string {
	rows, err := s.rows()
	if err != nil {
		return err.Error()
	}
	r, there := rows[id]
	switch k := s.known[id]; {
	case !there:
		return fmt.Sprintf("folder %s is gone", short(id))
	case strings.HasPrefix(r.Status, "delete-") && r.Status != string(cluster.FolderDeletePending):
		if !k.trashed {
			return fmt.Sprintf("folder %s is %s and was never in the trash", short(id), r.Status)
		}
		delete(s.known, id)
	default:
		k.trashed, k.shares = r.Status == string(cluster.FolderDeletePending), r.Shares
	}
	return ""
}

// judge looks whether everything that was promised holds.
func (s *folderSim) judge() string {
	rows, err := s.rows()
	if err != nil {
		return err.Error()
	}
	return judgeFolders(rows, s.known, s.proxies.folders, map[string]int{s.project: maxProjectFolders})
}

// judgeFolders compares what users were told with the rows and with what the proxy has. limits are those of owners that differ from most.
func judgeFolders(rows map[string]folderRow, known map[string]*knownFolder, stored map[string]string, limits map[string]int) string {
	for _, id := range slices.Sorted(maps.Keys(known)) {
		k, r := known[id], rows[id]
		ready := r.Status == string(cluster.FolderReady)
		switch {
		case r.ID == "":
			return fmt.Sprintf("acknowledged is durable: folder %s is gone", short(id))
		case k.trashed && r.Status != string(cluster.FolderDeletePending):
			return fmt.Sprintf("acknowledged is durable: folder %s was put into the trash and is %s", short(id), r.Status)
		case !k.trashed && !ready && (!k.copied || r.Status != string(cluster.FolderCloning)):
			return fmt.Sprintf("acknowledged is durable: folder %s is %s", short(id), r.Status)
		case !maps.Equal(k.shares, r.Shares):
			return fmt.Sprintf("shares hold: folder %s is shared with %v, and users were told %v", short(id), r.Shares, k.shares)
		}
		if got := stored[vfid(r)]; (ready || k.trashed) && got != k.content {
			return fmt.Sprintf("acknowledged is durable: folder %s has %q inside, it had %q", short(id), got, k.content)
		}
	}
	counts := map[string]int{}
	for _, r := range rows {
		if !strings.HasPrefix(r.Status, "delete-") || r.Status == string(cluster.FolderDeletePending) {
			counts[r.Owner]++
		}
	}
	for _, owner := range slices.Sorted(maps.Keys(counts)) {
		if most := cmp.Or(limits[owner], maxUserFolders); counts[owner] > most {
			return fmt.Sprintf("quotas hold: owner %s has %d folders, %d are allowed", short(owner), counts[owner], most)
		}
	}
	return ""
}

func vfid(r folderRow) string {
	scope, err := cluster.ParseQuotaScope(r.Scope)
	if err != nil {
		return ""
	}
	return cluster.FolderRef{Scope: scope, Folder: cluster.FolderID(r.ID)}.String()
}

// finish ends all faults, lets what is under way come to its end, removes everything, and looks whether anything is left.
func (s *folderSim) finish() string {
	s.proxies.faulty, s.proxies.away = false, false
	settled := func(what string) string {
		for range 200 {
			s.steps++
			s.now = s.now.Add(30 * time.Second)
			if err := s.pass(); err != nil && !fault.Is(err, fault.Unavailable) {
				return "a pass fails: " + err.Error()
			}
			rows, err := s.rows()
			if err != nil {
				return err.Error()
			}
			under := slices.DeleteFunc(slices.Collect(maps.Values(rows)), func(r folderRow) bool {
				return !slices.Contains([]string{"performing", "cloning", "delete-ongoing"}, r.Status)
			})
			if len(under) == 0 {
				return s.judge()
			}
		}
		return "no folder is stuck: " + what
	}
	if why := settled("after all faults have ended"); why != "" {
		return why
	}
	// All that there is, also what was made for somebody who was never told.
	rows, err := s.rows()
	if err != nil {
		return err.Error()
	}
	for _, id := range slices.Sorted(maps.Keys(rows)) {
		r, as := rows[id], s.db.owners[0].actor
		for _, o := range s.db.owners {
			if string(o.actor.UserID) == r.Owner {
				as = o.actor
			}
		}
		if strings.HasPrefix(r.Status, "delete-") && r.Status != string(cluster.FolderDeletePending) {
			continue
		}
		err := s.do("remove "+short(id), func(ctx context.Context) (err error) {
			if r.Status != string(cluster.FolderDeletePending) {
				if _, err = s.nouns.Folders.Trash(ctx, as, id); err != nil {
					return err
				}
			}
			_, err = s.nouns.Folders.DeleteForever(ctx, as, id)
			return err
		})
		if err != nil {
			return fmt.Sprintf("folder %s cannot be removed: %v", short(id), err)
		}
		delete(s.known, id)
	}
	if why := settled("after all were removed"); why != "" {
		return why
	}
	if rows, err = s.rows(); err != nil {
		return err.Error()
	}
	for _, id := range slices.Sorted(maps.Keys(rows)) {
		if r := rows[id]; r.Status != string(cluster.FolderDeleteComplete) {
			return fmt.Sprintf("nothing is left: folder %s is %s", short(id), r.Status)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.proxies.folders)) {
		return "nothing is left: the proxy still has " + id
	}
	var tasks int
	err = s.db.do(s.now, func(ctx context.Context) error {
		return s.db.store.Pool().QueryRow(ctx, `SELECT count(*) FROM folder_tasks`).Scan(&tasks)
	})
	if err != nil || tasks > 0 {
		return fmt.Sprintf("nothing is left: %d tasks of folders %v", tasks, err)
	}
	return ""
}
