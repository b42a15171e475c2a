package status

import (
	"strings"
	"testing"
	"time"
)

func TestMapper(t *testing.T) {
	m, err := NewMapper([]Rule{{
		Type: "Placed", When: `statuses.exists(s, s.adapter == "placement")`,
		Status:  `dig(statuses.filter(s, s.adapter == "placement")[0], "data.cluster") != null ? "True" : "False"`,
		Reason:  `"Decided"`,
		Message: `resource.name + " on " + toJson(dig(statuses[0], "data"))`,
	}, {Type: "Early", When: `statuses.size() > 0`, Status: `statuses[0].observed_generation < resource.generation`},
		{Type: "Long", Status: `"True"`, Reason: `"` + strings.Repeat("x", 257) + `"`}})
	if err != nil {
		t.Fatal(err)
	}
	r := Resource{Generation: 2, UpdatedAt: epoch}
	document := map[string]any{"name": "abc", "generation": 2.0, "spec": map[string]any{"password": "SECRET"}}
	report := Report{Adapter: "placement", Generation: 2, ObservedAt: epoch.Add(5 * time.Second),
		Data:       []byte(`{"cluster":"mc1","token":"SECRET"}`),
		Conditions: []Reported{{Type: Available, Status: True}}}
	for _, c := range []struct {
		name    string
		reports []Report
		want    string
	}{
		{"nobody reported", nil, ""},
		{"an Unknown is not shown", []Report{{Adapter: "placement", Conditions: []Reported{
			{Type: Available, Status: Unknown}}}}, ""},
		{"reported", []Report{report}, `False True Decided abc on {"cluster":"mc1","token":"` + Redacted + `"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := m.Map(t.Context(), r, document, c.reports, nil, ReturnError)
			if err != nil {
				t.Fatal(err)
			}
			text := ""
			for _, k := range got {
				if text != "" {
					text += " "
				}
				text += strings.TrimSpace(string(k.Status) + " " + k.Reason.String() + " " + k.Message.String())
				if k.ObservedGeneration != 2 || !k.LastUpdatedTime.Equal(report.ObservedAt) ||
					!k.CreatedTime.Equal(epoch) {
					t.Errorf("%+v", k)
				}
			}
			if text != c.want {
				t.Errorf("got %q, want %q", text, c.want)
			}
		})
	}
	if _, err := m.Map(t.Context(), r, nil, []Report{report}, nil, ReturnError); err == nil {
		t.Error("an expression that fails gave no error")
	}
	// A failed rule does not refuse a change of the spec: the condition stays.
	before := []Condition{{Type: "Placed", Status: True, Reason: Given("Before")}, {Type: Reconciled, Status: False}}
	if got, err := m.Map(t.Context(), r, nil, []Report{report}, before, KeepPrevious); err != nil || len(got) != 1 ||
		got[0] != before[0] {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestMapperMasksTheResource(t *testing.T) {
	m, err := NewMapper([]Rule{{Type: "Told", Status: `"true"`,
		Message: `resource.spec.password + resource.spec.list[0].api_key`}, {
		Type: "Odd", When: `resource.odd`, Status: `"Maybe"`}})
	if err != nil {
		t.Fatal(err)
	}
	document := map[string]any{"odd": false, "spec": map[string]any{"password": "SECRET",
		"list": []any{map[string]any{"api_key": "SECRET"}}}}
	got, err := m.Map(t.Context(), Resource{}, document, nil, nil, ReturnError)
	if err != nil || len(got) != 1 || got[0].Message.String() != Redacted+Redacted || got[0].Status != True {
		t.Errorf("%+v, %v", got, err)
	}
	document["odd"] = true
	if _, err := m.Map(t.Context(), Resource{}, document, nil, nil, ReturnError); err == nil {
		t.Error("a status that is neither True nor False gave no error")
	}
}

func TestMapperRefuses(t *testing.T) {
	for _, r := range []Rule{
		{Type: "Reconciled", Status: `"True"`}, {Type: "XSuccessful", Status: `"True"`}, {Type: "", Status: `"True"`},
		{Type: "A"},
		{Type: "A", Status: `1`}, {Type: "A", Status: `"True"`, When: `"yes"`}, {Type: "A", Status: `nope`},
	} {
		if _, err := NewMapper([]Rule{r}); err == nil {
			t.Errorf("NewMapper accepted %+v", r)
		}
	}
}
