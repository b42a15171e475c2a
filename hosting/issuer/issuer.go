// Package issuer gives control planes the public keys of their customers' issuers of tokens.
//
// A plane connects to nobody. Keeper reads the keys of each issuer, by a client that reaches public addresses only,
// and writes them with the rest of the plane's authentication configuration into a file of the plane's directory,
// which the plane reads again when it changes. Planes with the same issuer share its reads.
//
// Hosting calls Apply in the reconciliation of a HostedCluster, and is notified when there are other keys or problems.
package issuer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
)

const (
	readEvery   = time.Minute      // between two reads of an issuer's keys
	retryAfter  = 10 * time.Second // after the first failed read; twice as long after each further one
	retryLimit  = 5 * time.Minute
	keysTrusted = time.Hour // for so long the keys of the last read are used
	readsAtOnce = 16
	readsOfHost = 2 // at once, of one host's issuers
)

// Options describe a Keeper. Dir is required.
type Options struct {
	// Dir returns the directory of a plane, whether or not it exists.
	Dir func(controlplane.ID) string
	// Networks are networks that no public address has and that issuers may have nevertheless.
	Networks []netip.Prefix

	Log     *slog.Logger          // default: none
	Metrics prometheus.Registerer // default: none
}

// Keeper keeps the keys of issuers. Use New. Several goroutines may call its methods, those of one plane one at a time.
type Keeper struct {
	o     Options
	reads chan struct{} // holds one for each read that runs
	fails prometheus.Counter

	mu      sync.Mutex
	ctx     context.Context // of Run; nil before
	changed func(controlplane.ID)
	sources map[source]*keys
	hosts   map[string]*hostReads // of the sources that are read
	plans   map[controlplane.ID][]source
	running sync.WaitGroup
}

// source is a server of keys: planes with the same one share its reads.
type source struct{ url, authority string }

// keys are the keys of one source.
type keys struct {
	set    json.RawMessage // of the last read that succeeded; nil: there was none
	readAt time.Time       // of set
	tried  bool            // a read has ended since the source is used
	err    error           // of the last read
	planes map[controlplane.ID]bool
	cancel context.CancelFunc
}

// New returns a Keeper that reads nothing before Run.
func New(o Options) *Keeper {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	k := &Keeper{o: o, reads: make(chan struct{}, readsAtOnce), sources: map[source]*keys{},
		hosts: map[string]*hostReads{},
		plans: map[controlplane.ID][]source{},
		fails: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "atoll_issuer_read_failures_total",
			Help: "Reads of the keys of customers' token issuers that failed.",
		})}
	if o.Metrics != nil {
		o.Metrics.MustRegister(k.fails)
	}
	return k
}

// Run reads keys until ctx ends. changed is called after a read with another result, for each plane that uses the
// source; it must not block.
func (k *Keeper) Run(ctx context.Context, changed func(controlplane.ID)) error {
	k.mu.Lock()
	k.ctx, k.changed = ctx, changed
	for s, of := range k.sources {
		k.start(s, of)
	}
	k.mu.Unlock()
	<-ctx.Done()
	k.running.Wait()
	return nil
}

// Apply makes issuers those of a plane. It returns at once: keys that were not read yet come later, with a call of
// changed. problems names, for the customer, the issuers whose keys cannot be read. A plane without a directory gets
// its file by a later call.
func (k *Keeper) Apply(id controlplane.ID, issuers []cluster.Issuer) (problems []string, err error) {
	k.subscribe(id, issuers)
	dir := k.o.Dir(id)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, fileName)
	before, err := readFile(path)
	if err != nil {
		return nil, err
	}
	if len(issuers) == 0 {
		if before == nil {
			return nil, nil
		}
		return nil, os.Remove(path)
	}
	var have file
	if json.Unmarshal(before, &have) != nil {
		have = file{} // a damaged file is replaced
	}
	want, problems := k.compose(issuers, have, time.Now())
	after, err := json.Marshal(want)
	if err != nil || bytes.Equal(before, after) && hasOwner(path, dir) {
		return problems, err
	}
	if err := writeFile(path, after); err != nil {
		return problems, fmt.Errorf("the issuers of plane %s: %w", id, err)
	}
	return problems, nil
}

// Forget ends the reads for a plane that is deleted.
func (k *Keeper) Forget(id controlplane.ID) { k.subscribe(id, nil) }

// subscribe makes the sources of issuers those that are read for a plane.
func (k *Keeper) subscribe(id controlplane.ID, issuers []cluster.Issuer) {
	wanted := make([]source, 0, len(issuers))
	for _, i := range issuers {
		wanted = append(wanted, sourceOf(i))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if slices.Equal(wanted, k.plans[id]) {
		return
	}
	for _, s := range wanted {
		of := k.sources[s]
		if of == nil {
			of = &keys{planes: map[controlplane.ID]bool{}}
			k.sources[s] = of
			if k.ctx != nil {
				k.start(s, of)
			}
		}
		of.planes[id] = true
	}
	for _, s := range k.plans[id] {
		if slices.Contains(wanted, s) {
			continue
		}
		of := k.sources[s]
		if delete(of.planes, id); len(of.planes) == 0 {
			if of.cancel != nil {
				of.cancel()
			}
			delete(k.sources, s)
		}
	}
	if k.plans[id] = wanted; len(wanted) == 0 {
		delete(k.plans, id)
	}
}

func sourceOf(i cluster.Issuer) source { return source{i.URL, i.CertificateAuthority} }

// start begins the reads of a source. The caller holds mu.
func (k *Keeper) start(s source, of *keys) {
	var ctx context.Context
	ctx, of.cancel = context.WithCancel(k.ctx)
	k.running.Go(func() { k.follow(ctx, s, of) })
}

// follow reads the keys of a source until ctx ends.
func (k *Keeper) follow(ctx context.Context, s source, of *keys) {
	client := newClient(s.authority, k.o.Networks)
	host := k.joinHost(s.url)
	defer k.leaveHost(s.url)
	for failures := 0; ; {
		set, err := k.read(ctx, client, s.url, host)
		if ctx.Err() != nil {
			return
		}
		k.finish(s, of, set, err)
		if failures++; err == nil {
			failures = 0
		}
		pause := pauseAfter(failures)
		timer := time.NewTimer(pause + rand.N(pause/10))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// read reads the keys of an issuer when a place among the reads of its host, and then among all reads, is free.
func (k *Keeper) read(ctx context.Context, client *http.Client, issuer string, host *hostReads) (
	json.RawMessage, error) {
	for _, places := range []chan struct{}{host.places, k.reads} {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return fetch(ctx, client, issuer)
}

// pauseAfter returns the time between two reads of an issuer of which the last so many have failed.
func pauseAfter(failures int) time.Duration {
	if failures == 0 {
		return readEvery
	}
	return min(retryAfter<<min(failures-1, 10), retryLimit)
}

// hostReads bounds the reads of the issuers of one host: one that does not answer must not hold up all others.
type hostReads struct {
	places  chan struct{}
	sources int
}

// joinHost returns the bound of an issuer's host. leaveHost follows.
func (k *Keeper) joinHost(issuer string) *hostReads {
	k.mu.Lock()
	defer k.mu.Unlock()
	host := k.hosts[hostOf(issuer)]
	if host == nil {
		host = &hostReads{places: make(chan struct{}, readsOfHost)}
		k.hosts[hostOf(issuer)] = host
	}
	host.sources++
	return host
}

func (k *Keeper) leaveHost(issuer string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	host := k.hosts[hostOf(issuer)]
	if host.sources--; host.sources == 0 {
		delete(k.hosts, hostOf(issuer))
	}
}

// hostOf returns the host of an issuer's URL.
func hostOf(issuer string) string {
	u, err := url.Parse(issuer)
	if err != nil {
		return issuer
	}
	return u.Hostname()
}

// finish records the result of a read.
func (k *Keeper) finish(s source, of *keys, set json.RawMessage, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	isNew := !of.tried || fmt.Sprint(err) != fmt.Sprint(of.err)
	of.tried, of.err = true, err
	if err == nil {
		isNew = isNew || !bytes.Equal(set, of.set)
		of.set, of.readAt = set, time.Now()
	} else {
		k.fails.Inc()
		if isNew {
			k.o.Log.Warn("the keys of an issuer cannot be read", "issuer", s.url, "planes", len(of.planes), "error", err,
				"cause", errors.Unwrap(err))
		}
	}
	if !isNew {
		return
	}
	for id := range of.planes {
		k.changed(id)
	}
}
