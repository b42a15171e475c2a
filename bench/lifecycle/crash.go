package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"atoll.dev/bus"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
)

// crash measures how long a region needs after kill -9 of one of its processes until all agree again, and that no
// acknowledged change is lost. While a process is away a writer goes on changing clusters, as clients do. All agree
// when each watcher and each event of the sentinel has the acknowledged generation of each changed cluster, and
// fleet has placed a new cluster.
type crash struct {
	region *region
	ids    []string // of the clusters

	mu           sync.Mutex
	acknowledged map[string]int64   // generations of changed clusters, by id
	events       map[string]int64   // generations of the sentinel's events
	watched      []map[string]int64 // generations that each watcher has
	changes      int
}

// victim is a process that run kills and starts again.
type victim struct {
	name string
	run  func(context.Context) error
}

const (
	watchers = 3
	// changesBefore and changesAfter are how many changes are acknowledged before a process is killed, and after it
	// was started again.
	changesBefore, changesAfter = 20, 20
)

// newCrash connects the watchers and an adapter that only receives events, and waits until each watcher has all
// clusters.
func newCrash(ctx context.Context, o regionOptions, clusters int) (c *crash, err error) {
	c = &crash{acknowledged: map[string]int64{}, events: map[string]int64{}}
	if c.region, err = connectRegion(o); err != nil {
		return c, err // Close ends what is there
	}
	for i := range watchers {
		c.watched = append(c.watched, make(map[string]int64, clusters))
		if err := c.watch(ctx, i); err != nil {
			return c, err
		}
	}
	if err := c.receiveEvents(ctx); err != nil {
		return c, err
	}
	err = await(ctx, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, all := range c.watched {
			if len(all) < clusters {
				return fmt.Errorf("watcher %d has %d clusters", i, len(all))
			}
		}
		return nil
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.watched[0] {
		c.ids = append(c.ids, id)
	}
	return c, err
}

func (c *crash) watch(ctx context.Context, i int) error {
	config, err := c.region.ClientTLS(pki.ServiceName("platform"), "clm")
	if err != nil {
		return err
	}
	client, err := clmclient.New(clmclient.Options{Endpoint: c.region.URL, TLS: config})
	if err != nil {
		return err
	}
	c.region.OnClose(func() error { client.Close(); return nil })
	c.region.Background(ctx, func(ctx context.Context) error {
		err := client.Follow(ctx, "clusters", remote.WatchOptions{Fields: "id,generation"}, func(e remote.Event) error {
			return c.noteGeneration(e, c.watched[i])
		})
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
	return nil
}

func (c *crash) noteGeneration(e remote.Event, in map[string]int64) error {
	if e.Type != rest.Added && e.Type != rest.Modified {
		return nil
	}
	var r resource
	if err := json.Unmarshal(e.Object, &r); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	in[r.ID] = max(in[r.ID], r.Generation)
	return nil
}

func (c *crash) receiveEvents(ctx context.Context) error {
	config, err := c.region.ClientTLS(pki.ServiceName("adapter"), "broker")
	if err != nil {
		return err
	}
	listener := bus.NewClient(bus.ClientOptions{
		Addr: c.region.Broker, TLS: config, ClientID: "adapter-bench",
		Subscriptions: []string{bus.EventFilter("bench", "clusters")},
		Handler: func(_ context.Context, m bus.Message) {
			defer m.Ack()
			var r resource
			if json.Unmarshal(m.Event.Data, &r) == nil {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.events[r.ID] = max(c.events[r.ID], r.Generation)
			}
		},
	})
	c.region.Background(ctx, listener.Run)
	return await(ctx, func() error { return listener.Check(ctx) })
}

// measure kills a victim and adds the figures: seconds from the kill until the process is ready, until fleet has placed
// a new cluster, and until all agree.
func (c *crash) measure(ctx context.Context, v victim, figures map[string]any) error {
	writing, stop := context.WithCancel(ctx)
	var writer sync.WaitGroup
	writer.Go(func() { c.write(writing) })
	defer writer.Wait()
	defer stop()
	before := c.count() // changes
	if err := c.awaitChanges(ctx, before+changesBefore); err != nil {
		return err
	}
	began := time.Now()
	if err := v.run(ctx); err != nil {
		return err
	}
	figures[v.name+"_ready_seconds"] = time.Since(began).Seconds()
	if err := c.awaitChanges(ctx, c.count()+changesAfter); err != nil {
		return err
	}
	if err := c.placeNew(ctx, "after-"+fmt.Sprint(began.UnixNano())); err != nil {
		return err
	}
	figures[v.name+"_placed_seconds"] = time.Since(began).Seconds()
	stop()
	writer.Wait()
	if err := await(ctx, c.checkAgreement); err != nil {
		return err
	}
	figures[v.name+"_agree_seconds"], figures[v.name+"_changes"] = time.Since(began).Seconds(), c.count()-before
	return c.checkStored(ctx)
}

func (c *crash) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changes
}

func (c *crash) awaitChanges(ctx context.Context, n int) error {
	return await(ctx, func() error {
		if have := c.count(); have < n {
			return fmt.Errorf("%d changes were acknowledged, not %d", have, n)
		}
		return nil
	})
}

// write changes one cluster after the other, twenty in a second, until ctx ends. It repeats a change until it is
// acknowledged.
func (c *crash) write(ctx context.Context) {
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for i := c.count(); ctx.Err() == nil; i++ {
		id := c.ids[i%len(c.ids)]
		for ctx.Err() == nil {
			var r resource
			call, cancel := context.WithTimeout(ctx, 5*time.Second)
			err := c.region.Call(call, "PATCH", "/clusters/"+id, map[string]any{"spec": map[string]any{
				"hostedCluster": map[string]any{"release": map[string]any{"image": "atoll.dev/release:1.36.3"}},
				"note":          fmt.Sprintf("change %d", i)}}, &r)
			cancel()
			if err == nil {
				c.mu.Lock()
				c.acknowledged[id] = r.Generation
				c.changes++
				c.mu.Unlock()
				break
			}
			if *verbose {
				fmt.Fprintln(os.Stderr, "a change is repeated:", err)
			}
			waitTick(ctx, pause)
		}
		waitTick(ctx, pause)
	}
}

func waitTick(ctx context.Context, t *time.Ticker) {
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// placeNew creates a cluster and has it placed, once the agent of the management cluster is reported as connected.
func (c *crash) placeNew(ctx context.Context, name string) error {
	var hosts struct{ Items []resource }
	if err := c.region.Call(ctx, "GET", "/managementclusters", nil, &hosts); err != nil {
		return err
	}
	for _, host := range hosts.Items {
		if err := reportAgent(ctx, c.region, host.ID); err != nil {
			return err
		}
	}
	var r resource
	if err := c.region.Call(ctx, "POST", "/clusters", map[string]any{"kind": "Cluster", "name": name,
		"spec": map[string]any{}}, &r); err != nil {
		return err
	}
	return place(ctx, c.region, r.ID)
}

// checkAgreement returns an error until the watchers and the events have all acknowledged generations.
func (c *crash) checkAgreement() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var missing []error
	for id, generation := range c.acknowledged {
		if c.events[id] < generation {
			missing = append(missing, fmt.Errorf("no event of %s has generation %d", id, generation))
		}
		for i, all := range c.watched {
			if all[id] < generation {
				missing = append(missing, fmt.Errorf("watcher %d has not generation %d of %s", i, generation, id))
			}
		}
	}
	return errors.Join(missing...)
}

// checkStored reads each changed cluster: an older generation than the acknowledged one is a lost change.
func (c *crash) checkStored(ctx context.Context) error {
	for id, generation := range c.acknowledged {
		var r resource
		if err := c.region.Call(ctx, "GET", "/clusters/"+id, nil, &r); err != nil {
			return err
		}
		if r.Generation < generation {
			return fmt.Errorf("a change is lost: %s has generation %d, and %d was acknowledged", id, r.Generation, generation)
		}
	}
	return nil
}
