package policy

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	cedar "github.com/cedar-policy/cedar-go"
	publicast "github.com/cedar-policy/cedar-go/ast"
	"pgregory.net/rapid"
)

// drawStatement draws a statement of Cedar, whose parts are those of drawQuery often enough to match. Some conditions
// fail, before or after a comparison of tags.
func drawStatement(t *rapid.T) string {
	one := func(label string, of ...string) string { return rapid.SampledFrom(of).Draw(t, label) }
	effect := one("effect", "permit", "permit", "forbid")
	principal := one("principal", "principal", "principal", `principal == ROSA::Principal::"ann"`,
		`principal == ROSA::Principal::"bob"`, `principal in ROSA::Group::"g1"`, "principal is ROSA::Principal")
	action := one("action", "action", `action == ROSA::Action::"DescribeCluster"`,
		`action in ROSA::Action::"ReadOnly"`, `action in [ROSA::Action::"DeleteCluster", ROSA::Action::"NodePoolAdmin"]`)
	resource := one("resource", "resource", "resource", `resource == ROSA::Cluster::"c1"`,
		`resource == ROSA::NodePool::"c1"`, `resource == ROSA::Cluster::"c2"`, `resource in ROSA::Cluster::"c1"`,
		`resource in ROSA::Account::"1"`, "resource is ROSA::Cluster", `resource is ROSA::NodePool in ROSA::Cluster::"c1"`)
	var text strings.Builder
	fmt.Fprintf(&text, "%s (%s, %s, %s)", effect, principal, action, resource)
	for range rapid.IntRange(0, 2).Draw(t, "conditions") {
		terms := rapid.SliceOfN(rapid.Custom(drawTerm), 1, 4).Draw(t, "terms")
		joined := terms[0]
		for _, term := range terms[1:] {
			and := one("and", " && ", " && ", " && ", " || ")
			if rapid.Bool().Draw(t, "to the right") {
				joined = term + and + "(" + joined + ")"
			} else {
				joined = "(" + joined + ")" + and + term
			}
		}
		fmt.Fprintf(&text, " %s { %s }", one("kind", "when", "when", "unless"), joined)
	}
	return text.String() + ";"
}

// drawTerm draws an operand of a condition.
func drawTerm(t *rapid.T) string {
	key := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")
	value := rapid.SampledFrom([]string{"x", "y"}).Draw(t, "value")
	return rapid.SampledFrom([]string{
		fmt.Sprintf(`resource.hasTag("%s") && resource.getTag("%s") == "%s"`, key, key, value),
		fmt.Sprintf(`resource.hasTag("%s") && "%s" == resource.getTag("%s")`, key, value, key),
		fmt.Sprintf(`resource is ROSA::Cluster && resource.hasTag("%s") && resource.getTag("%s") == "%s"`, key, key, value),
		fmt.Sprintf(`resource.hasTag("%s")`, key),
		fmt.Sprintf(`resource.getTag("%s") == "%s"`, key, value), // fails without the tag
		fmt.Sprintf(`resource.hasTag("a") && resource.getTag("%s") == "%s"`, key, value),
		fmt.Sprintf(`resource.hasTag("%s") && resource.getTag("%s") != "%s"`, key, key, value),
		fmt.Sprintf(`principal.hasTag("%s") && principal.getTag("%s") == "%s"`, key, key, value),
		fmt.Sprintf(`resource.hasTag("%s") && resource.getTag("%s") == principal.arn`, key, key),
		`principal in ROSA::Group::"g1"`, `resource in ROSA::Cluster::"c1"`, `principal.arn == "ann"`,
		`context.region == "r"`, `context.mfa`, `9223372036854775807 + context.time.toTime().toMilliseconds() > 0`,
		`resource is ROSA::NodePool`, `!(resource.hasTag("b"))`, `principal.nothing == 1`, `"text"`, `true`, `false`,
	}).Draw(t, "term")
}

func drawQuery(t *rapid.T) Query {
	q := Query{Principal: "ann", Account: "1", Context: Context{SourceIP: netip.MustParseAddr("10.1.2.3"), Region: "r",
		Time: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}}
	q.Groups = rapid.SampledFrom([][]string{nil, {"g1"}, {"g1", "g2"}}).Draw(t, "groups")
	q.Action = rapid.SampledFrom([]string{"DescribeCluster", "DeleteCluster", "DescribeNodePool"}).Draw(t, "action")
	q.Resource = Resource{Kind: rapid.SampledFrom([]Kind{Cluster, NodePool}).Draw(t, "kind"),
		ID: rapid.SampledFrom([]string{"c1", "c2"}).Draw(t, "id"), Account: "1",
		Tags: rapid.MapOf(rapid.SampledFrom([]string{"a", "b"}), rapid.SampledFrom([]string{"x", "y"})).Draw(t, "tags")}
	if q.Resource.Kind == NodePool {
		q.Resource.Cluster = rapid.SampledFrom([]string{"c1", "c2"}).Draw(t, "cluster")
	}
	return q
}

// drawAttached draws policies and attaches them to ann, to somebody else, and to groups.
func drawAttached(t *rapid.T) (attached []Attached) {
	for i, n := range rapid.SliceOfN(rapid.IntRange(1, 3), 0, 6).Draw(t, "policies") {
		p, err := Parse(strings.Join(rapid.SliceOfN(rapid.Custom(drawStatement), n, n).Draw(t, "statements"), "\n"))
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range rapid.SliceOfN(rapid.SampledFrom([]Attached{{Principal: "ann"}, {Principal: "ann"},
			{Principal: "bob"}, {Group: "g1"}, {Group: "g2"}}), 1, 3).Draw(t, "targets") {
			at.PolicyID, at.Policy = fmt.Sprint("p#", i), p
			attached = append(attached, at)
		}
	}
	return attached
}

// decideByAll lets Cedar evaluate every statement that reaches the principal as it was written, without an index.
func decideByAll(attached []Attached, q Query) (cedar.Decision, cedar.Diagnostic) {
	var all listed
	for _, a := range attached {
		if a.Principal != q.Principal && !slices.Contains(q.Groups, a.Group) {
			continue
		}
		for i, s := range a.Policy.statements {
			id := cedar.PolicyID(fmt.Sprintf("%s#%d", a.PolicyID, i+1))
			all = append(all, entry{id, cedar.NewPolicyFromAST((*publicast.Policy)(s.source))})
		}
	}
	r := newRequest(&q)
	return cedar.Authorize(all, unremembered{r}, r.forCedar())
}

type entry struct {
	id     cedar.PolicyID
	policy *cedar.Policy
}

// listed implements cedar.PolicyIterator; unlike a cedar.PolicySet it may have an id twice.
type listed []entry

func (l listed) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for _, e := range l {
			if !yield(e.id, e.policy) {
				return
			}
		}
	}
}

// unremembered builds the entities of a request each time.
type unremembered struct{ of *request }

func (u unremembered) Get(id cedar.EntityUID) (cedar.Entity, bool) { return u.of.entity(id) }

// sorted returns the reasons and errors of a diagnostic in an order that does not depend on that of the evaluation.
func sorted(d cedar.Diagnostic) string {
	slices.SortFunc(d.Reasons, func(a, b cedar.DiagnosticReason) int { return cmp.Compare(a.PolicyID, b.PolicyID) })
	slices.SortFunc(d.Errors, func(a, b cedar.DiagnosticError) int {
		return cmp.Or(cmp.Compare(a.PolicyID, b.PolicyID), cmp.Compare(a.Message, b.Message))
	})
	return fmt.Sprintf("%+v", d)
}

// The index leaves out only statements that are false without an error: the decision, the statements that decided and
// the errors are those of an evaluation of all statements.
func TestAnIndexDecidesAsAllStatementsDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		attached := drawAttached(t)
		ix := NewIndex(attached)
		for range 4 {
			q := drawQuery(t)
			want, wantWhy := decideByAll(attached, q)
			got, why := ix.authorize(&q)
			if got != want || sorted(why) != sorted(wantWhy) {
				t.Fatalf("%+v:\ngot  %v %s\nwant %v %s", q, got, sorted(why), want, sorted(wantWhy))
			}
			decision, err := ix.Decide(q)
			if err != nil || decision.Allowed && want != cedar.Allow {
				t.Fatalf("%+v: %+v, %v", q, decision, err)
			}
		}
	})
}

// A caller who does not know the tags reads the resource whenever they can change the answer.
func TestAnAnswerThatTagsChangeReadsTheResource(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		attached := drawAttached(t)
		ix, q := NewIndex(attached), drawQuery(t)
		known, _ := ix.authorize(&q)
		bare := q
		bare.Resource.Tags, bare.Resource.Cluster = nil, ""
		unknown, _ := ix.authorize(&bare)
		if known != unknown && !ix.ReadsResource(bare) {
			t.Fatalf("%+v: %v, and %v without the tags", q, known, unknown)
		}
	})
}

// A statement is found by its tag only if nothing that may fail is evaluated before the comparison.
func TestRequiredTags(t *testing.T) {
	for condition, want := range map[string]*tag{
		`when {resource.hasTag("a") && resource.getTag("a") == "x"}`:                                     {"a", "x"},
		`when {"x" == "x" && resource.hasTag("a") && resource.getTag("a") == "x"}`:                       nil,
		`when {resource.hasTag("a") && "x" == resource.getTag("a") && context.mfa}`:                      {"a", "x"},
		`when {resource is ROSA::Cluster && (resource.hasTag("a") && resource.getTag("a") == "x")}`:      {"a", "x"},
		`when {resource.hasTag("a") && (resource.getTag("a") == "x" && context.mfa)} unless {context.b}`: {"a", "x"},
		`when {context.mfa && resource.hasTag("a") && resource.getTag("a") == "x"}`:                      nil,
		`when {context.mfa} when {resource.hasTag("a") && resource.getTag("a") == "x"}`:                  nil,
		`unless {resource.hasTag("a") && resource.getTag("a") == "x"}`:                                   nil,
		`when {resource.hasTag("a") || resource.getTag("a") == "x"}`:                                     nil,
		`when {resource.getTag("a") == "x" && resource.hasTag("a")}`:                                     nil,
		`when {resource.hasTag("b") && resource.getTag("a") == "x"}`:                                     nil,
		`when {principal.hasTag("a") && resource.getTag("a") == "x"}`:                                    nil,
		`when {resource.hasTag("a") && resource.getTag("a") != "x"}`:                                     nil,
		`when {resource.hasTag("a") && resource.getTag("a") == 1}`:                                       nil,
		``: nil,
	} {
		p, err := Parse("permit (principal, action, resource) " + condition + ";")
		if err != nil {
			t.Fatal(err)
		}
		got := p.statements[0].tag
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%s: %v, want %v", condition, got, want)
		}
	}
}

// A request returns the entity that is asked for, whichever it returned before.
func TestARequestReturnsTheEntityThatIsAskedFor(t *testing.T) {
	r := newRequest(&Query{Principal: "ann", Account: "1", Groups: []string{"g1", "g2"},
		Resource: Resource{Kind: Cluster, ID: "c1"}})
	for range 2 {
		for _, id := range []cedar.EntityUID{uid(Group, "g1"), uid(Group, "g2"), r.resource, r.principal, r.principal} {
			if e, exists := r.Get(id); !exists || e.UID != id {
				t.Errorf("%v: %v, %v", id, e.UID, exists)
			}
		}
		for _, id := range []cedar.EntityUID{uid(Group, "g3"), {}} {
			if e, exists := r.Get(id); exists {
				t.Errorf("%v: %v", id, e.UID)
			}
		}
	}
}
