package clmclient

import (
	"regexp"
	"strings"

	"atoll.dev/api/clm"
)

// missingAdapters finds the names in the message of a Reconciled condition with the reason
// ReconciledMissingAdapters. HyperFleet's contract fixes the words.
var missingAdapters = regexp.MustCompile(`not reporting [A-Za-z]+=True: \[([^\]]*)\]`)

// Reconciled returns the condition Reconciled of a resource, and nil when its kind requires no
// adapter. The lifecycle manager gives a resource of such a kind a condition, too, once an adapter
// reports on it: False, with an empty list of missing adapters.
func Reconciled(r clm.Resource) *clm.ResourceCondition {
	c := Condition(r, "Reconciled")
	if c != nil && c.Status == "False" {
		if found := missingAdapters.FindStringSubmatch(c.Message); found != nil && found[1] == "" {
			return nil
		}
	}
	return c
}

// MissingAdapters returns the adapters that the message of a Reconciled condition names as missing.
// It is for servers that do not list them in the status.
func MissingAdapters(c *clm.ResourceCondition) []string {
	found := missingAdapters.FindStringSubmatch(c.Message)
	if found == nil || c.Status == "True" {
		return nil
	}
	return strings.FieldsFunc(found[1], func(r rune) bool { return r == ',' || r == ' ' })
}

// Condition returns the condition of this type, and nil when the resource has none.
func Condition(r clm.Resource, conditionType string) *clm.ResourceCondition {
	for i, c := range r.Status.Conditions {
		if c.Type == conditionType {
			return &r.Status.Conditions[i]
		}
	}
	return nil
}
