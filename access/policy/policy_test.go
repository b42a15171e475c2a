package policy_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"atoll.dev/access/policy"
)

const (
	account = "123456789012"
	ann     = "arn:aws:iam::123456789012:user/ann"
	session = "arn:aws:sts::123456789012:assumed-role/dev/s1"
	role    = "arn:aws:iam::123456789012:role/dev"
)

// question returns a query of ann about a cluster, from an address inside 10.0.0.0/8.
func question(action string, r policy.Resource) policy.Query {
	r.Account = account
	return policy.Query{Principal: ann, Account: account, Action: action, Resource: r, Context: policy.Context{
		SourceIP: netip.MustParseAddr("10.1.2.3"), Time: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC),
		Region: "local", UserAgent: "curl/8",
	}}
}

func cluster(id string, tags ...string) policy.Resource {
	r := policy.Resource{Kind: policy.Cluster, ID: id, Tags: map[string]string{}}
	for _, t := range tags {
		k, v, _ := strings.Cut(t, "=")
		r.Tags[k] = v
	}
	return r
}

// attach returns an index of valid policies that are attached to ann, named p0, p1 and so on.
func attach(t *testing.T, texts ...string) *policy.Index {
	t.Helper()
	var list []policy.Attached
	for i, text := range texts {
		if err := policy.Check(text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		p, err := policy.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, policy.Attached{PolicyID: fmt.Sprint("p", i), Policy: p, Principal: ann})
	}
	return policy.NewIndex(list)
}

func TestDecisions(t *testing.T) {
	const everything = `permit (principal, action, resource);`
	pool := policy.Resource{Kind: policy.NodePool, ID: "n1", Cluster: "c1", Tags: map[string]string{"env": "dev"}}
	mfa := question("DescribeCluster", cluster("c1"))
	mfa.Context.MFA = new(bool)
	for _, c := range []struct {
		name     string
		policies []string
		q        policy.Query
		allowed  bool
		by       string
	}{
		{"default deny", nil, question("DescribeCluster", cluster("c1")), false, ""},
		{"permit", []string{everything}, question("DescribeCluster", cluster("c1")), true, "p0"},
		{"another action", []string{`permit (principal, action == ROSA::Action::"DescribeCluster", resource);`},
			question("DeleteCluster", cluster("c1")), false, ""},
		{"deny wins", []string{everything, `forbid (principal, action == ROSA::Action::"DeleteCluster", resource);`},
			question("DeleteCluster", cluster("c1")), false, "p1"},
		{"one cluster", []string{`permit (principal, action, resource == ROSA::Cluster::"c1");`},
			question("DescribeCluster", cluster("c1")), true, "p0"},
		{"another cluster", []string{`permit (principal, action, resource == ROSA::Cluster::"c1");`},
			question("DescribeCluster", cluster("c2")), false, ""},
		{"a node pool in its cluster", []string{`permit (principal, action, resource in ROSA::Cluster::"c1");`},
			question("DescribeNodePool", pool), true, "p0"},
		{"a node pool of another cluster", []string{`permit (principal, action, resource in ROSA::Cluster::"c2");`},
			question("DescribeNodePool", pool), false, ""},
		{"in the account", []string{`permit (principal, action, resource in ROSA::Account::"123456789012");`},
			question("DescribeNodePool", pool), true, "p0"},
		{"in another account", []string{`permit (principal, action, resource in ROSA::Account::"210987654321");`},
			question("DescribeCluster", cluster("c1")), false, ""},
		{"a tag", []string{`permit (principal, action, resource) when {resource is ROSA::Cluster &&
			resource.hasTag("env") && resource.getTag("env") == "dev"};`},
			question("DescribeCluster", cluster("c1", "env=dev")), true, "p0"},
		{"another tag", []string{`permit (principal, action == ROSA::Action::"DescribeCluster", resource) when {
			resource.hasTag("env") && resource.getTag("env") == "dev"};`},
			question("DescribeCluster", cluster("c1", "env=prod")), false, ""},
		{"no tag", []string{`permit (principal, action == ROSA::Action::"DescribeCluster", resource) when {
			resource.hasTag("env") && resource.getTag("env") == "dev"};`},
			question("DescribeCluster", cluster("c1")), false, ""},
		{"an address", []string{`permit (principal, action, resource)
			when {context.sourceIp.isInRange(ip("10.0.0.0/8"))};`},
			question("DescribeCluster", cluster("c1")), true, "p0"},
		{"another address", []string{`permit (principal, action, resource)
			unless {context.sourceIp.isInRange(ip("10.0.0.0/8"))};`},
			question("DescribeCluster", cluster("c1")), false, ""},
		{"a time", []string{`permit (principal, action, resource) when {context.time < datetime("2026-11-22T11:59:59Z")};`},
			question("DescribeCluster", cluster("c1")), false, ""},
		{"unknown mfa", []string{`permit (principal, action, resource) when {context has mfa && context.mfa};`},
			question("DescribeCluster", cluster("c1")), false, ""},
		{"mfa", []string{`permit (principal, action, resource) when {context has mfa && !context.mfa};`}, mfa, true, "p0"},
		{"an evaluation that fails permits nothing", []string{everything, `forbid (principal, action, resource) when {
			context.userAgent like "curl*" && 9223372036854775807 + context.time.toTime().toMilliseconds() > 0};`},
			question("DescribeCluster", cluster("c1")), false, "p1"},
		{"a slot of a template", []string{`permit (principal == ?principal, action, resource);`},
			question("DescribeCluster", cluster("c1")), true, "p0"},
		{"a slot of a template for groups", []string{`permit (principal in ?group, action, resource);`},
			question("DescribeCluster", cluster("c1")), true, "p0"},
		{"another principal", []string{`permit (principal == ROSA::Principal::"arn:aws:iam::123456789012:user/bob",
			action, resource);`},
			question("DescribeCluster", cluster("c1")), false, ""},
	} {
		d, err := attach(t, c.policies...).Decide(c.q)
		if err != nil || d.Allowed != c.allowed || strings.Join(d.Policies, ",") != c.by {
			t.Errorf("%s: %+v, %v; want allowed %v by %s", c.name, d, err, c.allowed, c.by)
		}
	}
}

// The groups of a principal are entities that policies can name, and targets of attachments.
func TestGroupsAndRolesAreParents(t *testing.T) {
	text := `permit (principal in ROSA::Group::"g1", action, resource);`
	ix := attach(t, text)
	q := question("DescribeCluster", cluster("c1"))
	if d, _ := ix.Decide(q); d.Allowed {
		t.Error("a principal outside the group is allowed")
	}
	q.Groups = []string{"g0", "g1"}
	if d, _ := ix.Decide(q); !d.Allowed {
		t.Error("a member of the group is refused")
	}
	p, err := policy.Parse(`permit (principal, action, resource);`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		target  policy.Attached
		who     string
		groups  []string
		allowed bool
	}{
		{policy.Attached{Group: "g1"}, ann, []string{"g1"}, true},
		{policy.Attached{Group: "g1"}, ann, []string{"g2"}, false},
		{policy.Attached{Principal: ann}, session, nil, false},
		{policy.Attached{Principal: role}, session, nil, true},
		{policy.Attached{Principal: "g1"}, ann, []string{"g1"}, false},
	} {
		c.target.PolicyID, c.target.Policy = "p", p
		q := question("DescribeCluster", cluster("c1"))
		q.Principal, q.Groups = policy.Principal(c.who), c.groups
		if d, err := policy.NewIndex([]policy.Attached{c.target}).Decide(q); err != nil || d.Allowed != c.allowed {
			t.Errorf("%+v for %s in %v: %+v, %v", c.target, c.who, c.groups, d, err)
		}
	}
}

func TestIncompleteQueriesAreRefused(t *testing.T) {
	ix := attach(t, `permit (principal, action, resource);`)
	for name, change := range map[string]func(*policy.Query){
		"no address":     func(q *policy.Query) { q.Context.SourceIP = netip.Addr{} },
		"no time":        func(q *policy.Query) { q.Context.Time = time.Time{} },
		"no action":      func(q *policy.Query) { q.Action = "" },
		"unknown action": func(q *policy.Query) { q.Action = "EatCluster" },
	} {
		q := question("DescribeCluster", cluster("c1"))
		change(&q)
		if d, err := ix.Decide(q); err == nil || d.Allowed {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
}

func TestWrongPoliciesAreRefusedWithPositionAndReason(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "no statement"},
		{"permit (principal, action", "policy is not Cedar"},
		{"permit (principal, act, resource);", ":1:23"},
		{"permit (principal,\n action == ROSA::Action::\"EatCluster\",\n resource);", "EatCluster"},
		{`permit (principal is ROSA::Cluster, action, resource);`, "statement 1, at line 1"},
		{`permit (principal, action, resource is ROSA::Boat);`, "Boat"},
		{`permit (principal, action, resource) when {context.weather == "fine"};`, "weather"},
		{
			`permit (principal, action == ROSA::Action::"DescribeCluster", resource) when {resource.getTag("env") == "dev"};`,
			"env",
		},
		{`permit (principal, action, resource) when {principal == ?principal};`, "statement 1"},
		{`permit (principal, action, resource == ?resource);`, "not Cedar"},
		{`permit (principal, action == ROSA::Action::"CreateWork", resource is ROSA::Cluster);`, "statement 1"},
		{strings.Repeat("permit (principal, action, resource);\n", policy.MaxStatements+1), "51 statements"},
		{"//" + strings.Repeat("x", policy.MaxText), "bytes"},
		{
			"permit (principal, action, resource) when {" + strings.Repeat("(", 60) + "true" + strings.Repeat(")", 60) + "};",
			"nests",
		},
		{
			"permit (principal, action, resource);\npermit (principal, action, resource) when {1};",
			"statement 2, at line 2",
		},
	} {
		err := policy.Check(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: %v; want %q", c.text, err, c.want)
		}
	}
}

func TestManagedPoliciesAreValid(t *testing.T) {
	for _, m := range policy.ManagedPolicies() {
		if err := policy.Check(m.Text); err != nil {
			t.Errorf("%s: %v", m.Name, err)
		}
		ix := policy.NewIndex([]policy.Attached{{PolicyID: m.Name, Policy: m.Policy, Principal: ann}})
		permitted := 0
		for _, a := range policy.Actions() {
			d, err := ix.Decide(question(a.Name, policy.Resource{Kind: a.On, ID: "x"}))
			if err != nil || d.Allowed != slices.Contains(a.Groups, m.Name) {
				t.Errorf("%s, %s: %+v, %v", m.Name, a.Name, d, err)
			}
			if d.Allowed {
				permitted++
			}
			reads := strings.HasPrefix(a.Name, "Describe") || strings.HasPrefix(a.Name, "List")
			if m.Name == policy.ReadOnly && !reads && d.Allowed {
				t.Errorf("ReadOnly permits %s", a.Name)
			}
		}
		if permitted == 0 {
			t.Errorf("%s permits nothing", m.Name)
		}
	}
}

func TestReadsResource(t *testing.T) {
	pool := policy.Resource{Kind: policy.NodePool, ID: "n1"}
	for _, c := range []struct {
		text  string
		q     policy.Query
		reads bool
	}{
		{`permit (principal, action, resource);`, question("DescribeNodePool", pool), false},
		{`permit (principal, action, resource == ROSA::NodePool::"n1");`, question("DescribeNodePool", pool), false},
		{`permit (principal, action, resource in ROSA::Cluster::"c1");`, question("DescribeNodePool", pool), true},
		{`permit (principal, action, resource in ROSA::Cluster::"c1");`, question("DescribeCluster", cluster("c1")), false},
		{`permit (principal, action, resource) when {resource in ROSA::Cluster::"c1"};`,
			question("DescribeCluster", cluster("c1")), true},
		{`permit (principal, action == ROSA::Action::"DeleteCluster", resource) when {resource.hasTag("x")};`,
			question("DescribeCluster", cluster("c1")), false},
		{`forbid (principal, action == ROSA::Action::"DescribeCluster", resource) when {resource.hasTag("x")};`,
			question("DescribeCluster", cluster("c1")), true},
		{`permit (principal, action, resource) when {context.userAgent == "resource"};`,
			question("DescribeCluster", cluster("c1")), false},
	} {
		if got := attach(t, c.text).ReadsResource(c.q); got != c.reads {
			t.Errorf("%s: %v, want %v", c.text, got, c.reads)
		}
	}
}

// The memory of an index grows with the attachments, not with the statements and actions of their
// policies.
func TestAnIndexOfManyAttachmentsIsSmall(t *testing.T) {
	p, err := policy.Parse(strings.Repeat(`permit (principal, action in ROSA::Action::"AllActions", resource);`,
		policy.MaxStatements))
	if err != nil {
		t.Fatal(err)
	}
	list := make([]policy.Attached, 5000)
	for i := range list {
		list[i] = policy.Attached{PolicyID: "p", Policy: p, Principal: policy.Principal(fmt.Sprint(ann, i))}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	ix := policy.NewIndex(list)
	runtime.ReadMemStats(&after)
	if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 20<<20 {
		t.Errorf("an index of %d attachments allocates %d MiB", len(list), bytes>>20)
	}
	q := question("DescribeCluster", cluster("c1"))
	q.Principal = list[len(list)-1].Principal
	if d, err := ix.Decide(q); err != nil || !d.Allowed {
		t.Errorf("%+v, %v", d, err)
	}
}

// Conditions on userAgent read at most 512 bytes of it.
// The entities of a request are built once for a decision, not for each condition that reads them: 500 conditions on
// tags were 16,000 allocations, 1.3 MB, and missed the time of a decision.
func TestADecisionBuildsItsEntitiesOnce(t *testing.T) {
	var texts []string
	for i := range 500 {
		texts = append(texts, fmt.Sprintf(`permit (principal, action, resource) when { resource.hasTag("team") &&
			resource.getTag("team") == "team-%d" && principal.accountId == "%s" };`, i, account))
	}
	allocations := func(n int) float64 {
		ix, q := attach(t, texts[500-n:]...), question("DescribeCluster", cluster("c1", "team=team-499", "env=dev"))
		return testing.AllocsPerRun(10, func() {
			if d, err := ix.Decide(q); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
		})
	}
	if one, all := allocations(1), allocations(500); all > one+3*500 {
		t.Errorf("a decision by 500 conditions allocates %.0f times, and one by one condition %.0f times", all, one)
	}
}

func TestALongUserAgentIsCut(t *testing.T) {
	ix := attach(t, `permit (principal, action, resource) when {context.userAgent like "*x"};`)
	q := question("DescribeCluster", cluster("c1"))
	for length, allowed := range map[int]bool{511: true, 512: false} {
		q.Context.UserAgent = strings.Repeat("-", length) + "x"
		if d, err := ix.Decide(q); err != nil || d.Allowed != allowed {
			t.Errorf("%d bytes before the x: %+v, %v", length, d, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`permit (principal == ?principal, action, resource) when {"?principal" == "\"?principal"}; // ?group`)
	f.Add(`forbid (principal in ?group, action in [ROSA::Action::"ReadOnly"], resource) unless {context.mfa};`)
	f.Fuzz(func(_ *testing.T, text string) { _ = policy.Check(text) })
}

// BenchmarkDecide decides with 1,000 policies that are all attached to one principal, and all about
// the action of the question.
func BenchmarkDecide(b *testing.B) {
	var list []policy.Attached
	for i := range 1000 {
		p, err := policy.Parse(fmt.Sprintf(`permit (principal, action in [ROSA::Action::"DescribeCluster",
			ROSA::Action::"UpdateCluster"], resource == ROSA::Cluster::"c%d");`, i))
		if err != nil {
			b.Fatal(err)
		}
		list = append(list, policy.Attached{PolicyID: fmt.Sprint(i), Policy: p, Principal: ann})
	}
	ix, q := policy.NewIndex(list), question("DescribeCluster", cluster("c999"))
	for b.Loop() {
		if d, err := ix.Decide(q); err != nil || !d.Allowed {
			b.Fatal(d, err)
		}
	}
}
