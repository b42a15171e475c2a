// Package localnodes runs the real nodes of hosted clusters on this machine: one supervisor (`atoll node run`) for each
// node of a node pool with the provider local.
//
// Package nodepool orders a Machine for each Node object, by its cluster and the object's UID: a cluster that was made
// from the data of another one has Nodes with the same UIDs. A Machine has a directory, which is the home of its node,
// and a goroutine, which starts the supervisor, adopts one that runs already, starts it again when it
// ends, and at last stops it and deletes the directory. Supervisors outlive this process.
//
// Only packages below hosting and cli import it.
package localnodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/node"
	"atoll.dev/node/supervisor"
)

// maxDir is the longest path of the directory: homes lie below it, and a home has at most 64 bytes.
const maxDir = 64 - 1 - idLength

// Options of New; Dir, Atoll and Programs are required.
type Options struct {
	Dir      string                          // absolute, at most 55 bytes; has the homes
	Atoll    string                          // path of atoll, which runs a node
	Programs map[controlplane.Version]string // paths of atoll-node
	Images   []string                        // archives that every node imports
	Most     int                             // machines; default 20
	// Preflight returns what this machine lacks for nodes of these programs; default supervisor.Preflight.
	Preflight func(programs string) []supervisor.Missing
	Log       *slog.Logger // default: none
}

// Pool is the node pool that a machine belongs to.
type Pool struct {
	Cluster controlplane.ID
	Name    string // of the NodePool
}

// Order is a machine as its pool orders it.
type Order struct {
	Pool    Pool
	UID     types.UID // of the Node object
	Version controlplane.Version
	// Config is that of the node, without Home, Programs and Images. A bootstrap token is needed only while
	// Machine.NeedsToken; an empty one leaves the machine's token as it is.
	Config node.Config
}

// Machine is the observation of one machine.
type Machine struct {
	UID        types.UID
	Node       string     // name
	Removing   bool       // Remove was called, and something is left
	Joined     bool       // the node has its own certificate, and does not need its bootstrap token any more
	NeedsToken bool       // the node has not joined, and its bootstrap token has expired or will soon
	AwakeSince time.Time  // when this process began to run the machine, or Start ended its sleep
	State      node.State // of the supervisor; "" before its first start
	Message    string     // why the node does not start
}

// Machines are the machines of one directory. All methods may be called at once, after Open.
type Machines struct {
	o       Options
	missing error // what this machine lacks for real nodes

	ctx     context.Context // of Open: machines are left alone after its end
	changed func(Pool)
	wg      sync.WaitGroup

	mu  sync.Mutex
	all map[key]*machine

	balancers balancers
}

// key identifies a machine. The API server of another cluster may have a Node with the same UID.
type key struct {
	cluster controlplane.ID
	uid     types.UID
}

// New checks the options; nothing happens before Open.
func New(o Options) (*Machines, error) {
	if !filepath.IsAbs(o.Dir) || len(o.Dir) > maxDir {
		return nil, fmt.Errorf("the directory of nodes %q is not an absolute path of at most %d bytes, which Unix sockets "+
			"below it need", o.Dir, maxDir)
	}
	if len(o.Programs) == 0 {
		return nil, errors.New("real nodes need the programs of at least one release")
	}
	if o.Preflight == nil {
		o.Preflight = supervisor.Preflight
	}
	if o.Most == 0 {
		o.Most = 20
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Machines{o: o, all: map[key]*machine{}, balancers: balancers{all: map[serviceKey]balancer{}}}, nil
}

// Open finds the machines of an earlier process and begins to look after them. It calls changed after each change of a
// pool's machines, from any goroutine; changed does not block. When ctx ends, the supervisors continue; close waits for
// the end of this process's work.
func (m *Machines) Open(ctx context.Context, changed func(Pool)) (closeMachines func(), err error) {
	m.ctx, m.changed = ctx, changed
	for _, program := range m.o.Programs {
		m.missing = errors.Join(m.missing, supervisor.MissingError(m.o.Preflight(program)))
	}
	if err := os.MkdirAll(m.o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("the directory of nodes: %w", err)
	}
	entries, err := os.ReadDir(m.o.Dir)
	if err != nil {
		return nil, fmt.Errorf("the directory of nodes: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, entry := range entries {
		home := filepath.Join(m.o.Dir, entry.Name())
		if isUnfinished(entry.Name()) { // an earlier process ended while it made or deleted the home
			if err := os.RemoveAll(home); err != nil {
				m.o.Log.Warn("a part of a home of a node cannot be deleted", "path", home, "error", err)
			}
			continue
		}
		r, err := readRecord(home)
		if err != nil { // hosting did not make the directory, or somebody has changed it
			m.o.Log.Warn("a directory has no record of a node that can be read, and stays as it is", "path", home,
				"error", err)
			continue
		}
		m.begin(home, r)
	}
	return m.wg.Wait, nil
}

// Missing returns an error with what this machine lacks for real nodes, nil when it has all.
func (m *Machines) Missing() error { return m.missing }

// CanRun reports whether this machine has the programs of a release.
func (m *Machines) CanRun(version controlplane.Version) bool { return m.o.Programs[version] != "" }

// Releases lists the releases whose programs this machine has.
func (m *Machines) Releases() []controlplane.Version {
	return slices.Sorted(maps.Keys(m.o.Programs))
}

// BridgeOf returns the name of a cluster's bridge.
func (m *Machines) BridgeOf(cluster controlplane.ID) string {
	return "atoll-" + hashOf(m.o.Dir, cluster.String())
}

// Of lists the machines of a pool by UID.
func (m *Machines) Of(pool Pool) map[types.UID]Machine {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := map[types.UID]Machine{}
	for k, x := range m.all {
		if x.pool() == pool {
			found[k.uid] = x.observe()
		}
	}
	return found
}

// Pools lists the pools that have machines.
func (m *Machines) Pools() []Pool {
	m.mu.Lock()
	defer m.mu.Unlock()
	var pools []Pool
	for _, x := range m.all {
		if pool := x.pool(); !slices.Contains(pools, pool) {
			pools = append(pools, pool)
		}
	}
	return pools
}

// ErrFull is the error of Start when this machine runs as many nodes as it may.
var ErrFull = errors.New("this machine has no room for another real node")

// CheckRoom returns the error that Start would return for a machine that does not exist yet: ErrFull, or what Missing
// returns. It is nil when there is room.
func (m *Machines) CheckRoom() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.room()
}

// room is CheckRoom. The caller holds mu.
func (m *Machines) room() error {
	if m.missing == nil && len(m.all) >= m.o.Most {
		return fmt.Errorf("%w (it runs %d)", ErrFull, len(m.all))
	}
	return m.missing
}

// Start has a machine run, until Sleep or Remove. It may be repeated. A machine whose way to the API server has changed
// is started again; no other change of a config reaches a machine that exists. A machine stays in its pool: the error
// of another order names the pool.
func (m *Machines) Start(o Order) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x := m.all[key{o.Pool.Cluster, o.UID}]; x != nil {
		return x.renew(o)
	}
	if err := m.room(); err != nil {
		return err
	}
	home := filepath.Join(m.o.Dir, homeName(o.Pool.Cluster, o.UID))
	config := o.Config
	config.Home, config.Programs, config.Images.Preload = home, m.o.Programs[o.Version], m.o.Images
	if err := config.Validate(); err != nil {
		return fmt.Errorf("node %s: %w", config.Name, err)
	}
	r := record{Namespace: o.Pool.Cluster.Namespace, Cluster: o.Pool.Cluster.Name, Pool: o.Pool.Name, Node: config.Name,
		UID: o.UID}
	if err := makeHome(home, config, r); err != nil {
		return fmt.Errorf("node %s: %w", config.Name, err)
	}
	m.begin(home, r)
	return nil
}

// Sleep stops the machines of a pool and keeps their homes. Start has them run again. It returns at once.
func (m *Machines) Sleep(pool Pool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range m.all {
		if x.pool() == pool {
			x.set(asleep)
		}
	}
}

// Remove stops a machine of a pool and deletes everything of it. It returns at once; the machine is gone when Of does
// not have it any more. It may be repeated.
func (m *Machines) Remove(pool Pool, uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x := m.all[key{pool.Cluster, uid}]; x != nil && x.pool() == pool {
		x.set(removed)
	}
}

// begin adds a machine and starts its goroutine. The caller holds mu.
func (m *Machines) begin(home string, r record) {
	x := &machine{machines: m, home: home, record: r, poke: make(chan struct{}, 1), goal: r.Goal, awakeSince: time.Now(),
		log: m.o.Log.With("node", r.Node, "cluster", r.Cluster)}
	m.all[x.key()] = x
	m.wg.Go(func() { x.run(m.ctx) })
}

// forget ends a removed machine.
func (m *Machines) forget(x *machine) {
	m.mu.Lock()
	delete(m.all, x.key())
	m.mu.Unlock()
	m.changed(x.pool())
}
