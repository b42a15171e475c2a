package bundle

import (
	"strings"
	"testing"
)

func TestI11RulesForSecretsAreRefused(t *testing.T) {
	const manifests = `"manifests":[{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"n"}}]`
	option := func(group, resource, rules string) string {
		return `{` + manifests + `,"manifestConfigs":[{"resourceIdentifier":{"group":"` + group + `","resource":"` +
			resource + `","name":"s","namespace":"n"}` + rules + `}]}`
	}
	const feedback = `,"feedbackRules":[{"type":"WellKnownStatus"}]`
	const condition = `,"conditionRules":[{"type":"CEL","condition":"C","celExpressions":["true"]}]`
	for _, c := range []struct {
		name, data string
		refused    bool
	}{
		{"feedback", option("", "secrets", feedback), true},
		{"conditions", option("", "secrets", condition), true},
		{"a strategy only", option("", "secrets", `,"updateStrategy":{"type":"ReadOnly"}`), false},
		{"another resource", option("", "configmaps", feedback), false},
		{"another group", option("example.com", "secrets", feedback), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := CheckData([]byte(c.data))
			if (err != nil) != c.refused || c.refused && !strings.Contains(err.Error(), "manifestConfigs[0]") {
				t.Errorf("got %v", err)
			}
			if err := CheckHeldData([]byte(c.data)); err != nil {
				t.Errorf("the check of held data fails: %v", err)
			}
		})
	}
}
