package process

import (
	"slices"
	"testing"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
)

// A probe without an answer is repeated before it counts; an answer that names a part counts at
// once; a plane that fails for long is restarted.
func TestOneSlowProbeShowsNothing(t *testing.T) {
	probes := Probes{}.withDefaults()
	silent, etcd := []string{controlplane.APIServer}, []string{"etcd"}
	type step struct {
		after   time.Duration
		failing []string // the probe's result
		want    verdict
	}
	healthy := verdict{probeAfter: probes.Every}
	failing := func(parts []string) verdict { return verdict{failing: parts, probeAfter: probes.Retry} }
	for name, steps := range map[string][]step{
		"healthy": {{0, nil, healthy}, {probes.Every, nil, healthy}},
		"one slow answer": {
			{0, silent, failing(nil)}, {time.Second, nil, healthy}, {probes.Every, silent, failing(nil)}, {time.Second, nil, healthy},
		},
		"two in a row": {{0, silent, failing(nil)}, {time.Second, silent, failing(silent)}, {time.Second, nil, healthy}},
		"a failing part": {
			{0, etcd, failing(etcd)}, {time.Second, silent, failing(silent)}, {time.Second, etcd, failing(etcd)}, {time.Second, nil, healthy},
		},
		"silent, then a failing part": {{0, silent, failing(nil)}, {time.Second, etcd, failing(etcd)}},
		"for too long": {
			{0, silent, failing(nil)}, {probes.HangLimit, silent, failing(silent)}, {time.Millisecond, silent, verdict{hangs: true}},
		},
		"with a good probe between": {
			{0, etcd, failing(etcd)}, {probes.HangLimit, nil, healthy}, {time.Millisecond, etcd, failing(etcd)},
		},
	} {
		var h health
		now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
		for i, s := range steps {
			now = now.Add(s.after)
			var got verdict
			h, got = h.judge(s.failing, now, probes)
			if !slices.Equal(got.failing, s.want.failing) || got.hangs != s.want.hangs || got.probeAfter != s.want.probeAfter {
				t.Errorf("%s, step %d: %+v, want %+v", name, i, got, s.want)
			}
		}
	}
}

// A runner that begins anew forgets for how long the plane is unhealthy. Another number of nodes, which a customer can
// change at any rate, is no reason for that; TestAPlaneHasTheLimitsOfItsSize shows that the number has its effect.
func TestAnotherNumberOfNodesIsNoNewGoal(t *testing.T) {
	spec := controlplane.Spec{Name: "a", Release: "1.36.3", Size: cluster.Small, Nodes: 2}
	before := goal{action: run, spec: spec}
	for name, c := range map[string]struct {
		change func(*goal)
		isNew  bool
	}{
		"nothing": {func(*goal) {}, false},
		"nodes":   {func(g *goal) { g.spec.Nodes = 20 }, false},
		"size":    {func(g *goal) { g.spec.Size = cluster.Medium }, true},
		"release": {func(g *goal) { g.spec.Release = "1.36.4" }, true},
		"sleep":   {func(g *goal) { g.action = sleep }, true},
	} {
		after := before
		c.change(&after)
		if isNew := !before.equal(after); isNew != c.isNew {
			t.Errorf("%s: a new goal %t, want %t", name, isNew, c.isNew)
		}
	}
}

func TestEachPortBelongsToOnePlane(t *testing.T) {
	a, b := controlplane.ID{Name: "a"}, controlplane.ID{Name: "b"}
	p := &ports{first: firstPort, last: lastPort, taken: map[int]controlplane.ID{}}
	first, err := p.choose(a)
	if err != nil {
		t.Fatal(err)
	}
	if p.claim(b, first) || !p.claim(a, first) {
		t.Error("a port that a has was given to b, or refused to a")
	}
	second, err := p.choose(a)
	if err != nil || second == first || len(p.taken) != 1 {
		t.Errorf("a moved from %d to %d, %v; taken: %v", first, second, err, p.taken)
	}
	p.release(a)
	if len(p.taken) != 0 {
		t.Errorf("released, and taken: %v", p.taken)
	}
	full := &ports{first: first, last: first, taken: map[int]controlplane.ID{first: a}}
	if port, err := full.choose(b); err == nil {
		t.Errorf("b got port %d of a", port)
	}
}
