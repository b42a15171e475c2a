package clmfaults

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"atoll.dev/client/clmclient"
)

// writer writes its own resources, which no other writer writes.
type writer struct {
	w       *world
	n, next int
	random  *rand.Rand
	mine    []*resource
}

func (x *writer) run(end time.Time) {
	pause := time.NewTimer(0)
	for time.Now().Before(end) && !x.w.t.Failed() {
		x.step()
		pause.Reset(time.Duration(10+x.random.IntN(80)) * time.Millisecond)
		<-pause.C
	}
}

func (x *writer) step() {
	if len(x.mine) == 0 || len(x.mine) < perWriter && x.random.IntN(3) == 0 {
		x.create()
		return
	}
	i := x.random.IntN(len(x.mine))
	switch r := x.mine[i]; x.random.IntN(6) {
	case 0:
		x.remove(i)
	case 1:
		x.repeat(r)
	default:
		x.patch(r)
	}
}

// create creates a cluster, or a node pool or note of a cluster.
func (x *writer) create() {
	x.next++
	r := &resource{in: "clusters", kind: "Cluster", name: fmt.Sprintf("c-%d-%d", x.n, x.next), value: "new"}
	if len(x.mine) > 0 && x.random.IntN(3) > 0 {
		if owner := x.mine[x.random.IntN(len(x.mine))]; owner.kind == "Cluster" {
			r.parent, r.kind, r.name = owner, "NodePool", fmt.Sprintf("p-%d-%d", x.n, x.next)
			if x.random.IntN(4) == 0 {
				r.kind = "Note"
			}
			r.in = r.in.Below(owner.id, map[string]clmclient.Collection{"NodePool": "nodepools",
				"Note": "notes"}[r.kind])
		}
	}
	r.key = "key of " + r.name
	made, refused := x.w.retry("creating "+r.name, func(ctx context.Context, c *clmclient.Client) (clmclient.Resource,
		error) {
		return c.Create(ctx, r.in, body(r.kind, r.name, r.value), r.key)
	})
	if refused != nil {
		x.w.t.Errorf("creating %s: %v", r.name, refused)
		return
	}
	r.id, r.generation = made.ID, made.Generation
	if made.Generation != 1 {
		x.w.t.Errorf("I5: %s was created at generation %d", r.name, made.Generation)
	}
	x.mine = append(x.mine, r)
	x.w.mu.Lock()
	x.w.acknowledged[r.id] = r
	x.w.mu.Unlock()
}

// patch changes the value of a resource. One time in three it sends the version that it read with If-Match.
func (x *writer) patch(r *resource) {
	x.next++
	value := fmt.Sprintf("v%d", x.next)
	patch := json.RawMessage(fmt.Sprintf(`{"spec":{"value":%q}}`, value))
	conditional := x.random.IntN(3) == 0
	done, refused := x.w.retry("changing "+r.name, func(ctx context.Context, c *clmclient.Client) (clmclient.Resource,
		error) {
		etag := ""
		if conditional {
			have, err := c.Get(ctx, r.in, r.id, "")
			if err != nil {
				return have, err
			}
			etag = have.ETag
		}
		return c.Merge(ctx, r.in, r.id, patch, etag)
	})
	if refused != nil && refused.Status == 412 {
		x.readOutcome(r, value)
		return
	}
	if refused != nil {
		x.w.t.Errorf("changing %s: %v", r.name, refused)
		return
	}
	if done.Generation != r.generation+1 {
		x.w.t.Errorf("I2: one change moved %s from generation %d to %d", r.name, r.generation, done.Generation)
	}
	x.set(r, value, done.Generation)
}

// readOutcome reads the outcome of a change that was refused as stale: after a report in between,
// or after an earlier attempt whose answer was lost.
func (x *writer) readOutcome(r *resource, value string) {
	have, refused := x.w.retry("reading "+r.name, func(ctx context.Context, c *clmclient.Client) (clmclient.Resource,
		error) {
		return c.Get(ctx, r.in, r.id, "")
	})
	if refused != nil {
		x.w.t.Errorf("reading %s: %v", r.name, refused)
		return
	}
	var spec struct{ Value string }
	if err := json.Unmarshal(have.Spec, &spec); err != nil || spec.Value != r.value && spec.Value != value {
		x.w.t.Errorf("I2: %s has %s after %q", r.name, have.Spec, r.value)
	}
	x.set(r, spec.Value, have.Generation)
}

func (x *writer) set(r *resource, value string, generation int32) {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	r.value, r.generation = value, generation
}

// repeat sends the present spec and the creation with its key once more: the generation stays (I3), and the key creates
// no second resource.
func (x *writer) repeat(r *resource) {
	same, refused := x.w.retry("an equal change of "+r.name, func(ctx context.Context, c *clmclient.Client) (
		clmclient.Resource, error) {
		return c.Replace(ctx, r.in, r.id, json.RawMessage(fmt.Sprintf(`{"spec":{"value":%q}}`, r.value)), "")
	})
	if refused != nil || same.Generation != r.generation {
		x.w.t.Errorf("I3: an equal change gave %s generation %d instead of %d: %v", r.name, same.Generation, r.generation,
			refused)
	}
	made, refused := x.w.retry("creating again "+r.name, func(ctx context.Context, c *clmclient.Client) (
		clmclient.Resource,
		error) {
		return c.Create(ctx, r.in, body(r.kind, r.name, "new"), r.key)
	})
	if refused != nil || made.ID != r.id {
		x.w.t.Errorf("I5: the key of %s created %s: %v", r.name, made.ID, refused)
	}
}

// remove requests the deletion of a resource and of those below it, and checks that its key creates no second resource.
func (x *writer) remove(i int) {
	r := x.mine[i]
	var left []*resource
	x.w.mu.Lock()
	for _, other := range x.mine {
		if other == r || other.parent == r {
			x.w.deleting[other.name] = true
		} else {
			left = append(left, other)
		}
	}
	r.deleted = true
	x.w.mu.Unlock()
	x.mine = left
	_, refused := x.w.retry("deleting "+r.name, func(ctx context.Context, c *clmclient.Client) (clmclient.Resource,
		error) {
		return c.Delete(ctx, r.in, r.id, "")
	})
	if refused != nil && refused.Status != 404 { // 404: an earlier try deleted it
		x.w.t.Errorf("deleting %s: %v", r.name, refused)
	}
	if made, refused := x.w.retry("creating again after its deletion "+r.name, func(ctx context.Context,
		c *clmclient.Client) (
		clmclient.Resource, error) {
		return c.Create(ctx, r.in, body(r.kind, r.name, "new"), r.key)
	}); refused == nil && made.ID != r.id {
		x.w.t.Errorf("I5: the key of %s created %s after the deletion", r.name, made.ID)
	}
}
