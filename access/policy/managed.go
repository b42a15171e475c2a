package policy

import "slices"

// Managed is a policy that every account has. Its id is its name.
type Managed struct {
	Name, Description, Text string
	Policy                  *Policy
}

// managed is the table of managed policies. Each permits the group of actions of its name.
var managed = compile([]Managed{
	{Name: ReadOnly, Description: "Read the account's clusters, node pools, credentials without secrets, and policies."},
	{Name: ClusterAdmin, Description: "Create, change and delete clusters, node pools and credentials."},
	{Name: NodePoolAdmin, Description: "Create, change and delete node pools; read clusters."},
	{Name: PolicyAdmin, Description: "Write and attach policies, and change groups. " +
		"Whoever has it can give himself every other right in the account."},
	{Name: Operator, Description: "Operate the region: management clusters, works, accounts that are not privileged. " +
		"It has an effect in privileged accounts only."},
	{Name: AllActions, Description: "Every action. Operators' actions only in privileged accounts."},
})

// compile gives each managed policy its text and its compiled form.
func compile(list []Managed) []Managed {
	for i := range list {
		m := &list[i]
		m.Text = "permit (principal, action in ROSA::Action::\"" + m.Name + "\", resource);"
		var err error
		if m.Policy, err = Parse(m.Text); err != nil {
			panic("policy: the managed policy " + m.Name + ": " + err.Error())
		}
	}
	return list
}

// ManagedPolicies returns all managed policies.
func ManagedPolicies() []Managed { return slices.Clone(managed) }

// FindManaged returns the managed policy of a name.
func FindManaged(name string) (Managed, bool) {
	i := slices.IndexFunc(managed, func(m Managed) bool { return m.Name == name })
	if i < 0 {
		return Managed{}, false
	}
	return managed[i], true
}
