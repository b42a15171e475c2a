package clmclient

import (
	"testing"

	"atoll.dev/api/clm"
)

// A report on a kind without required adapters makes a condition that no client waits for.
func TestReconciledOfAKindWithoutAdapters(t *testing.T) {
	resource := func(message string) clm.Resource {
		return clm.Resource{Status: clm.ResourceStatus{Conditions: []clm.ResourceCondition{
			{Type: "Reconciled", Status: "False", Message: message}}}}
	}
	if c := Reconciled(
		resource("Required adapters not reporting Available=True: []. Currently reporting: []")); c != nil {
		t.Errorf("no adapter is missing: %+v", c)
	}
	if Reconciled(resource("Required adapters not reporting Available=True: [dns]. Currently reporting: []")) == nil {
		t.Error("dns is missing")
	}
	if Reconciled(clm.Resource{}) != nil {
		t.Error("there is no condition")
	}
}
