package work

import workv1 "open-cluster-management.io/api/work/v1"

// SecretRulesRefused is the reason for which rules that read a Secret are refused: at the
// APIs, and by the agent, whose status then has this text.
const SecretRulesRefused = "feedback and condition rules may not read Secrets"

// IsSecret reports whether a resource is the one of Kubernetes' Secrets.
func IsSecret(group, resource string) bool { return group == "" && resource == "secrets" }

// SecretRules finds the first option with feedback or condition rules for Secrets. Such
// rules would bring any Secret of a management cluster, also one that the work only reads,
// into a status. found is false when there is none.
func SecretRules(options []workv1.ManifestConfigOption) (index int, found bool) {
	for i, o := range options {
		if IsSecret(o.ResourceIdentifier.Group, o.ResourceIdentifier.Resource) &&
			len(o.FeedbackRules)+len(o.ConditionRules) > 0 {
			return i, true
		}
	}
	return 0, false
}
