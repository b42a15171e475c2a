package original

import (
	"encoding/json"
	"testing"
)

// TestRowsWithRulesForSecretsAreImported: the row is of an earlier release, and its agent
// refuses the rules.
func TestRowsWithRulesForSecretsAreImported(t *testing.T) {
	row := resourceRow{baseRow: baseRow{ID: "w1"}, Source: "s", Consumer: "mc1", Version: 1,
		Payload: map[string]json.RawMessage{"data": json.RawMessage(`{
			"manifests":[{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"n"}}],
			"manifestConfigs":[{"resourceIdentifier":{"group":"","resource":"secrets","name":"s","namespace":"n"},
				"feedbackRules":[{"type":"WellKnownStatus"}]}]}`)}}
	if _, err := row.spec(); err != nil {
		t.Errorf("the import refuses the row: %v", err)
	}
}
