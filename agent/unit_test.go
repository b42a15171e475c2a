package agent

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 123456789, time.UTC)

// The hash is of the status with its keys in order, as OCM's SDK hashes it (test/interop compares the two).
func TestStatusHashCoversTheseBytes(t *testing.T) {
	one := int64(1)
	status := workv1.ManifestWorkStatus{
		Conditions: []metav1.Condition{{Type: "Applied", Status: "True", ObservedGeneration: 2,
			LastTransitionTime: metav1.NewTime(noon), Reason: "R", Message: "M"}},
		ResourceStatus: workv1.ManifestResourceStatus{Manifests: []workv1.ManifestCondition{{
			ResourceMeta: workv1.ManifestResourceMeta{Ordinal: 1, Group: "apps", Version: "v1", Kind: "Deployment",
				Resource: "deployments", Name: "n", Namespace: "ns"},
			StatusFeedbacks: workv1.StatusFeedbackResult{Values: []workv1.FeedbackValue{
				{Name: "v", Value: workv1.FieldValue{Type: workv1.Integer, Integer: &one}}}},
			Conditions: []metav1.Condition{},
		}}},
	}
	want := `{"conditions":[{"lastTransitionTime":"2026-05-04T12:00:00Z","message":"M","observedGeneration":2,` +
		`"reason":"R","status":"True","type":"Applied"}],` +
		`"resourceStatus":{"manifests":[{"conditions":[],"resourceMeta":{"group":"apps","kind":"Deployment","name":"n",` +
		`"namespace":"ns","ordinal":1,"resource":"deployments","version":"v1"},` +
		`"statusFeedback":{"values":[{"fieldValue":{"integer":1,"type":"Integer"},"name":"v"}]}}]}}`
	if statusHash(status) != hexSHA256([]byte(want)) {
		t.Error("the hash is not of these bytes")
	}
	if got := statusHash(workv1.ManifestWorkStatus{}); got != hexSHA256([]byte(`{"resourceStatus":{}}`)) {
		t.Error("the hash of no status")
	}
	if got := hubHash("mqtt.example:1883"); got != hexSHA256([]byte("mqtt.example:1883")) || len(got) != 64 {
		t.Errorf("hub hash %s", got)
	}
}

func TestSequenceGrowsWithAnyClock(t *testing.T) {
	var s sequence
	if _, ok := s.next(noon); ok {
		t.Error("an id is given out that nothing on disk covers")
	}
	ceiling, due := s.reserve(noon)
	if _, again := s.reserve(noon); !due || again {
		t.Error("a reserve is not asked for, or twice")
	}
	s.reserved(ceiling)
	first, _ := s.next(noon)
	if ms := first>>timeShift + snowflakeEpoch; ms != noon.UnixMilli() || first>>12&1023 != snowflakeNode ||
		first&stepMask != 0 {
		t.Errorf("%d is no snowflake of that time", first)
	}
	rapid.Check(t, func(t *rapid.T) {
		var s sequence
		last, disk := int64(0), int64(0)
		for range rapid.IntRange(1, 50).Draw(t, "times") {
			if rapid.Bool().Draw(t, "restart") {
				s = sequence{}
				s.resume(disk)
			}
			now := noon.Add(time.Duration(rapid.Int64Range(-1e6, 1e6).Draw(t, "clock")) * time.Millisecond)
			for range rapid.SampledFrom([]int{1, 3, 5000}).Draw(t, "burst") {
				if ceiling, due := s.reserve(now); due && rapid.IntRange(0, 3).Draw(t, "written") > 0 {
					disk = ceiling
					s.reserved(ceiling)
				}
				id, ok := s.next(now)
				if !ok {
					continue
				}
				if id <= last || id > disk {
					t.Fatalf("%d after %d, on disk %d", id, last, disk)
				}
				if id>>12&1023 != snowflakeNode {
					t.Fatalf("%d is of another node: servers refuse it", id)
				}
				last = id
			}
		}
	})
}

func TestSequenceContinuesAboveThatOfTheServer(t *testing.T) {
	var s sequence
	use := func(now time.Time) int64 {
		t.Helper()
		if ceiling, due := s.reserve(now); due {
			s.reserved(ceiling)
		}
		id, ok := s.next(now)
		if !ok {
			t.Fatal("no id, although the reserve is on disk")
		}
		return id
	}
	server := snowflake(noon.Add(2*time.Hour).UnixMilli(), 7)
	use(noon)
	s.raiseAbove(server)
	id := use(noon.Add(time.Second))
	if id <= server || id>>12&1023 != snowflakeNode {
		t.Errorf("%d after the server's %d", id, server)
	}
	for _, known := range []int64{0, -1, server, id, math.MaxInt64, maxRaise} {
		before := s.last
		if s.raiseAbove(known); s.last != before {
			t.Errorf("the server's %d changed %d to %d", known, before, s.last)
		}
	}
	if s.raiseAbove(maxRaise - 1); use(noon.Add(3*time.Hour)) <= maxRaise-1 {
		t.Error("the last id that is taken over leaves no room")
	}
}

// Each restart continues at the ceiling on disk. A hundred restarts at one time move the ids no
// further ahead of the clock than one reserve, and a few milliseconds.
func TestRestartsKeepSequenceIDsNearTheClock(t *testing.T) {
	disk := int64(0)
	for range 100 {
		var s sequence
		s.resume(disk)
		for range 10 {
			if ceiling, due := s.reserve(noon); due {
				disk = ceiling
				s.reserved(ceiling)
			}
			id, ok := s.next(noon)
			if !ok {
				t.Fatal("no id is reserved")
			}
			ahead := time.UnixMilli(id>>timeShift + snowflakeEpoch).Sub(noon)
			if limit := sequenceReserve + 100*sequenceSpare; ahead > limit {
				t.Fatalf("an id is %s ahead of the clock, want at most %s", ahead, limit)
			}
		}
	}
}

func TestCompareSpecs(t *testing.T) {
	at := func(generation int64, hash string) *spec { return &spec{ID: "w", Generation: generation, Hash: hash} }
	deleting := func(generation int64, hash string) *spec {
		return &spec{ID: "w", Generation: generation, Hash: hash, Deleting: true}
	}
	for _, c := range []struct {
		name      string
		known, in *spec
		want      verdict
	}{
		{"unknown", nil, at(1, "a"), verdictTake},
		{"unknown, deleted", nil, deleting(1, "a"), verdictTake},
		{"newer", at(1, "a"), at(2, "b"), verdictTake},
		{"newer with equal content", at(1, "a"), at(2, "a"), verdictTake},
		{"again", at(2, "a"), at(2, "a"), verdictSame},
		{"other content of the same generation", at(2, "a"), at(2, "b"), verdictTake},
		{"older", at(2, "a"), at(1, "b"), verdictStale},
		{"without generation", at(2, "a"), at(0, "b"), verdictTake},
		{"deleted", at(2, "a"), deleting(2, "a"), verdictTake},
		{"deleted without generation", at(2, "a"), deleting(0, ""), verdictTake},
		{"a stale deletion", at(2, "a"), deleting(1, "a"), verdictStale},
		{"deleted again", deleting(2, "a"), deleting(3, "a"), verdictSame},
		{"ordered while it is deleted", deleting(2, "a"), at(3, "b"), verdictRefused},
	} {
		if got := compareSpecs(c.known, c.in); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestManifestConditionsFollowTheContract(t *testing.T) {
	there := &observed{exists: true}
	md := workv1.ManifestResourceMeta{Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Name: "n",
		Namespace: "ns"}
	text := "t"
	values := []workv1.FeedbackValue{{Name: "v", Value: workv1.FieldValue{Type: workv1.String, String: &text}}}
	for _, c := range []struct {
		name string
		view manifestView
		want string // type=status/reason/message, one per line
	}{
		{"applied", manifestView{meta: md, mapped: true, live: there},
			"Applied=True/AppliedManifestComplete/Apply manifest complete\nAvailable=True/ResourceAvailable/Resource " +
				"is available\nStatusFeedbackSynced=True/NoStatusFeedbackSynced/"},
		{"with feedback", manifestView{meta: md, mapped: true, live: there, hasRules: true,
			found: feedback{Values: values}},
			"Applied=True/AppliedManifestComplete/Apply manifest complete\nAvailable=True/ResourceAvailable/Resource " +
				"is available\nStatusFeedbackSynced=True/StatusFeedbackSynced/"},
		{"feedback fails", manifestView{meta: md, mapped: true, live: there, hasRules: true,
			found: feedback{Err: "no"}},
			"Applied=True/AppliedManifestComplete/Apply manifest complete\nAvailable=True/ResourceAvailable/Resource " +
				"is available\nStatusFeedbackSynced=False/StatusFeedbackSyncFailed/Sync status feedback failed with " +
				"error no"},
		{"refused", manifestView{meta: md, mapped: true, live: &observed{}, err: "bad",
			reason: "AppliedManifestFailed"},
			"Applied=False/AppliedManifestFailed/Failed to apply manifest: " +
				"bad\nAvailable=False/ResourceNotAvailable/Resource is not available"},
		{"ignoreFields", manifestView{meta: md, mapped: true, live: there, err: "bad",
			reason: "AppliedManifestSSAIgnoreFieldError"},
			"Applied=False/AppliedManifestSSAIgnoreFieldError/Failed to process ignoreFields: " +
				"bad\nAvailable=True/ResourceAvailable/Resource is " +
				"available\nStatusFeedbackSynced=True/NoStatusFeedbackSynced/"},
		{"not readable", manifestView{meta: md, mapped: true, err: "bad", reason: "AppliedManifestFailed",
			readErr: "forbidden"},
			"Applied=False/AppliedManifestFailed/Failed to apply manifest: " +
				"bad\nAvailable=Unknown/FetchingResourceFailed/Failed to fetch resource: forbidden"},
		{"unknown kind", manifestView{meta: workv1.ManifestResourceMeta{Kind: "X", Name: "n"}, err: "bad",
			reason: "AppliedManifestFailed"},
			"Applied=False/AppliedManifestFailed/Failed to apply manifest: " +
				"bad\nAvailable=Unknown/IncompleteResourceMeta/Resource meta is incomplete"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := manifestStatus(c.view, nil, 3, noon)
			if diff := cmp.Diff(c.want, conditionText(got.Conditions)); diff != "" {
				t.Error(diff)
			}
			for _, cond := range got.Conditions {
				if cond.ObservedGeneration != 3 || cond.LastTransitionTime.Time != noon.Truncate(time.Second) {
					t.Errorf("%s: generation %d, time %s", cond.Type, cond.ObservedGeneration, cond.LastTransitionTime)
				}
			}
			// A later report of the same state changes nothing but the generation.
			again := manifestStatus(c.view, &got, 4, noon.Add(time.Hour))
			if diff := cmp.Diff(conditionText(got.Conditions), conditionText(again.Conditions)); diff != "" {
				t.Error(diff)
			}
			if at := again.Conditions[0].LastTransitionTime.Time; !at.Equal(noon.Truncate(time.Second)) {
				t.Errorf("the transition time moved to %s", at)
			}
		})
	}
}

func TestWorkConditions(t *testing.T) {
	m := func(applied, available metav1.ConditionStatus) workv1.ManifestCondition {
		return workv1.ManifestCondition{Conditions: []metav1.Condition{{Type: "Applied", Status: applied},
			{Type: "Available", Status: available}}}
	}
	good, failed := "Applied=True/AppliedManifestWorkComplete/Apply manifest work complete\n",
		"Applied=False/AppliedManifestWorkFailed/Failed to apply manifest work\n"
	for _, c := range []struct {
		manifests []workv1.ManifestCondition
		want      string
	}{
		{nil, "Available=Unknown/ResourcesStatusUnknown/cannot get any available resource "},
		{[]workv1.ManifestCondition{m("True", "True"), m("True", "True")},
			good + "Available=True/ResourcesAvailable/All resources are available"},
		{[]workv1.ManifestCondition{m("False", "True"), m("True", "False")},
			failed + "Available=False/ResourcesNotAvailable/1 of 2 resources are not available"},
		{[]workv1.ManifestCondition{m("True", "Unknown"), m("True", "False"), m("True", "Unknown")},
			good + "Available=False/ResourcesNotAvailable/1 of 3 resources are not available"},
		{[]workv1.ManifestCondition{m("True", "Unknown"), m("True", "True")},
			good + "Available=Unknown/ResourcesStatusUnknown/1 of 2 resources have unknown status"},
	} {
		if diff := cmp.Diff(c.want, conditionText(workConditions(c.manifests, 1))); diff != "" {
			t.Error(diff)
		}
	}
}

func conditionText(conditions []metav1.Condition) string {
	var lines []string
	for _, c := range conditions {
		lines = append(lines, c.Type+"="+string(c.Status)+"/"+c.Reason+"/"+c.Message)
	}
	return strings.Join(lines, "\n")
}

func TestOwnsObject(t *testing.T) {
	id := identity{"apps", "deployments", "ns", "n"}
	rule := workv1.OrphaningRule{Group: "apps", Resource: "deployments", Namespace: "ns", Name: "n"}
	for name, c := range map[string]struct {
		option *workv1.DeleteOption
		want   bool
	}{
		"none":       {nil, true},
		"foreground": {&workv1.DeleteOption{PropagationPolicy: "Foreground"}, true},
		"orphan":     {&workv1.DeleteOption{PropagationPolicy: "Orphan"}, false},
		"this one": {&workv1.DeleteOption{PropagationPolicy: "SelectivelyOrphan",
			SelectivelyOrphan: &workv1.SelectivelyOrphan{OrphaningRules: []workv1.OrphaningRule{rule}}}, false},
		"another one": {&workv1.DeleteOption{PropagationPolicy: "SelectivelyOrphan",
			SelectivelyOrphan: &workv1.SelectivelyOrphan{OrphaningRules: []workv1.OrphaningRule{
				{Group: "apps", Resource: "deployments", Namespace: "ns", Name: "o"}}}}, true},
		"no rules": {&workv1.DeleteOption{PropagationPolicy: "SelectivelyOrphan"}, true},
	} {
		if got := ownsObject(id, c.option); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestBackoffs(t *testing.T) {
	for failures, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 6: 32 * time.Second,
		7: time.Minute, 1000: time.Minute} {
		if got := backoff(failures); got != want {
			t.Errorf("after %d failures %s, want %s", failures, got, want)
		}
	}
	// Two writers that fight over an object are slowed down; a single change is repaired at once.
	o := &object{}
	now := noon
	if at := o.nextRepair(now); !at.Equal(now) {
		t.Errorf("the first repair waits until %s", at)
	}
	n := 0
	for end := now.Add(time.Minute); now.Before(end); n++ {
		now = o.nextRepair(now)
	}
	if n > 12 {
		t.Errorf("%d repairs in a minute", n)
	}
	if at := o.nextRepair(now.Add(2 * time.Minute)); !at.Equal(now.Add(2 * time.Minute)) {
		t.Errorf("a repair after a quiet time waits until %s", at)
	}
}

func TestAFingerprintCoversOnlyTheAgentsFields(t *testing.T) {
	entry := func(manager, op, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationType(op),
			FieldsV1: &metav1.FieldsV1{Raw: []byte(fields)}}
	}
	ours := entry("work-agent", "Apply", `{"f:data":{"f:b":{},"f:a":{}}}`)
	same := fingerprint([]metav1.ManagedFieldsEntry{ours}, nil)
	if got := fingerprint([]metav1.ManagedFieldsEntry{entry("other", "Update", `{"f:x":{}}`),
		entry("work-agent", "Apply", `{"f:data":{"f:a":{},"f:b":{}}}`)}, nil); got != same {
		t.Error("the order of fields, or another manager, changes it")
	}
	if got := fingerprint([]metav1.ManagedFieldsEntry{entry("work-agent", "Apply", `{"f:data":{"f:a":{}}}`)},
		nil); got == same {
		t.Error("a field that is no longer ours does not change it")
	}
	named := entry("cl-maestro", "Apply", `{"f:data":{"f:a":{}}}`)
	if fingerprint([]metav1.ManagedFieldsEntry{named}, nil) != "" || fingerprint([]metav1.ManagedFieldsEntry{named},
		[]string{"cl-maestro"}) == "" {
		t.Error("another manager's fields count when a work names it, and only then")
	}
	if fingerprint(nil, nil) != "" {
		t.Error("there is one without fields")
	}
}
