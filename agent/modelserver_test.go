package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"

	"atoll.dev/api/work"
	"atoll.dev/internal/digest"
)

func (m *model) order(id work.ID) {
	o := m.orders[id]
	if o == nil {
		// A real server begins at 1 again. Here an acknowledgement of the life
		// before is recognized by its generation.
		o = &modelOrder{generation: m.lastGenerations[id]}
		m.orders[id] = o
	}
	if o.deleting {
		return
	}
	m.value++
	o.generation++
	o.applied = false
	o.objects = map[string]string{}
	for _, n := range modelNames {
		if rapid.Bool().Draw(m.t, n) {
			name := string(id) + n
			if n == "shared" {
				name = n
			}
			o.objects[name] = fmt.Sprint(m.value)
		}
	}
	o.orphan = rapid.IntRange(0, 5).Draw(m.t, "orphan") == 0
	o.name = rapid.SampledFrom([]string{"", string(id), "n-" + string(id), "n-" + string(id), "same", "b",
		"not a name"}).Draw(m.t, "name")
	o.executor = rapid.IntRange(0, 3).Draw(m.t, "executor") == 0
	o.leave, o.strategies = map[string]bool{}, map[string]workv1.UpdateStrategyType{}
	for _, name := range slices.Sorted(maps.Keys(o.objects)) {
		o.leave[name] = rapid.IntRange(0, 5).Draw(m.t, "leave "+name) == 0
		if kind := rapid.SampledFrom([]workv1.UpdateStrategyType{"", "", "", workv1.UpdateStrategyTypeCreateOnly,
			workv1.UpdateStrategyTypeReadOnly, workv1.UpdateStrategyTypeServerSideApply}).Draw(
			m.t, "strategy"); kind != "" {
			o.strategies[name] = kind
		}
	}
	m.publish(id)
}

func (m *model) publish(id work.ID) {
	o := m.orders[id]
	b := work.Bundle{}
	for _, name := range slices.Sorted(maps.Keys(o.objects)) {
		b.Manifests = append(b.Manifests, configMap("ns", name, "k", o.objects[name]))
	}
	if o.generation%3 > 0 {
		b.ManifestConfigs = []workv1.ManifestConfigOption{{
			ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "*", Name: "*"},
			FeedbackRules: []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{
				{Name: "phase", Path: ".status.phase"}}}},
		}}
		if o.generation%3 > 1 {
			b.ManifestConfigs[0].ConditionRules = []workv1.ConditionRule{celRule("Ready", `object.status.phase == ""`)}
		}
	}
	if o.orphan {
		b.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	}
	b.DeleteOption = cmp.Or(b.DeleteOption, &workv1.DeleteOption{
		PropagationPolicy: workv1.DeletePropagationPolicyTypeSelectivelyOrphan,
		SelectivelyOrphan: &workv1.SelectivelyOrphan{},
	})
	for _, name := range slices.Sorted(maps.Keys(o.objects)) {
		if rules := b.DeleteOption.SelectivelyOrphan; rules != nil && o.leave[name] {
			rules.OrphaningRules = append(rules.OrphaningRules, workv1.OrphaningRule{Resource: "configmaps",
				Namespace: "ns", Name: name})
		}
		if kind := o.strategies[name]; kind != "" {
			b.ManifestConfigs = append(b.ManifestConfigs, workv1.ManifestConfigOption{
				ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "ns",
					Name: name}, UpdateStrategy: &workv1.UpdateStrategy{Type: kind},
			})
		}
	}
	if o.executor {
		b.Executer = &workv1.ManifestWorkExecutor{Subject: workv1.ManifestWorkExecutorSubject{
			Type: workv1.ExecutorSubjectTypeServiceAccount}}
	}
	data, err := json.Marshal(b)
	if err != nil {
		m.fatalf("%v", err)
	}
	s, err := decodeSpec(spec{ID: id, Generation: o.generation, Source: "maestro",
		Metadata: fmt.Sprintf(`{"name":%q}`, o.name), Deleting: o.deleting, Received: m.now}, data)
	if err != nil {
		m.fatalf("%v", err)
	}
	if m.online {
		m.specsInFlight = append(m.specsInFlight, evSpec{spec: s, ack: func() { m.checkAcknowledged(s) }})
	}
}

// checkAcknowledged checks I6: what is acknowledged is on disk, or something newer is.
func (m *model) checkAcknowledged(s *spec) {
	d, ok := m.disk[s.ID]
	if !ok || d.Spec == nil {
		if o := m.orders[s.ID]; o != nil && !o.deleting && s.Generation == o.generation && !s.Deleting {
			m.fatalf("%s generation %d is acknowledged and not on disk (I6)", s.ID, s.Generation)
		}
		return
	}
	if d.Spec.Generation < s.Generation && !d.Spec.Deleting {
		m.fatalf("%s generation %d is acknowledged, the disk has %d (I6)", s.ID, s.Generation, d.Spec.Generation)
	}
}

// compareDigests acts as the server in a comparison by digests. It ignores statuses, so it always
// reports a difference once a status exists.
func (m *model) compareDigests(say effPublish) {
	if !m.digests {
		return
	}
	var ours []work.WorkState
	for id, o := range m.orders {
		ours = append(ours, work.WorkState{ID: work.ID(id), Version: o.generation, Deleting: o.deleting})
	}
	switch data := say.data.(type) {
	case work.Digest:
		items := digest.ItemsOf(ours)
		a := work.DigestAnswer{Same: digest.Root(items) == data.Root}
		if !a.Same {
			a.Bits = 1
			a.Buckets = digest.Buckets(items, a.Bits)
		}
		m.events = append(m.events, evDigest{a})
	case work.BucketWorks:
		known := map[work.ID]work.WorkState{}
		for _, w := range data.Works {
			known[work.ID(w.ID)] = w
		}
		for _, id := range slices.Sorted(maps.Keys(m.orders)) {
			o, has := m.orders[id], known[id]
			if slices.Contains(data.Buckets, digest.Bucket(string(id), data.Bits)) &&
				(has.Version < o.generation || o.deleting) {
				m.publish(id)
			}
		}
	}
}

func (m *model) resync(versions []work.SpecVersion) {
	known := map[work.ID]int64{}
	for _, v := range versions {
		known[work.ID(v.ID)] = v.Version
	}
	for _, id := range slices.Sorted(maps.Keys(m.orders)) {
		if o := m.orders[id]; o.deleting || known[id] < o.generation {
			m.publish(id)
		}
	}
}

func (m *model) deliverStatus(i int) {
	ev := m.sends[i]
	m.sends = slices.Delete(m.sends, i, i+1)
	ok := m.online && rapid.IntRange(0, 9).Draw(m.t, "status lost") > 0
	if m.online {
		m.status(ev)
	}
	m.events = append(m.events, evSent{id: ev.id, seq: ev.seq, hash: ev.hash, accepted: ok})
}

func (m *model) status(ev *statusEvent) {
	o := m.orders[ev.id]
	if o == nil || ev.seq <= o.sequence {
		return
	}
	if meta.IsStatusConditionTrue(ev.status.Conditions, work.ConditionDeleted) {
		if !o.deleting || ev.version != o.generation {
			return
		}
		for key, obj := range m.objects {
			if slices.ContainsFunc(m.amwsOf(ev.id), func(a *amwState) bool {
				return slices.Contains(obj.owners,
					a.uid)
			}) {
				m.fatalf("%s is acknowledged as deleted, and owns %s (I9)", ev.id, key)
			}
		}
		m.lastGenerations[ev.id] = o.generation
		delete(m.orders, ev.id)
		return
	}
	if ev.version != o.generation {
		return
	}
	o.sequence = ev.seq
	if meta.IsStatusConditionTrue(ev.status.Conditions, workv1.WorkDeleting) {
		return // it repeats the last status, maybe of an older generation
	}
	o.applied = meta.IsStatusConditionTrue(ev.status.Conditions, workv1.WorkApplied) || len(o.objects) == 0
	o.phases = map[string]string{}
	for _, mc := range ev.status.ResourceStatus {
		phase := feedbackOf(mc)["phase"]
		o.phases[mc.ResourceMeta.Name] = phase
		if o.generation%3 > 1 && meta.IsStatusConditionTrue(mc.Conditions, workv1.ManifestAvailable) &&
			meta.IsStatusConditionTrue(mc.Conditions, "Ready") != (phase == "") {
			m.fatalf("%s: %s is in phase %q, and its conditions say %s", ev.id, mc.ResourceMeta.Name, phase,
				conditionText(mc.Conditions))
		}
	}
}

func (m *model) connect() {
	if !m.online {
		m.online = true
		m.step(evConnected{})
	}
}

func (m *model) disconnect() {
	if m.online {
		m.online, m.specsInFlight = false, nil
		m.step(evDisconnected{})
	}
}
