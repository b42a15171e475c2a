package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
	"atoll.dev/rules"
)

// feedback is the result of the rules of one manifest on its object.
type feedback struct {
	Values     []workv1.FeedbackValue
	Err        string
	Conditions []ruleCondition
}

// ruleset is the feedback and condition rules of one manifest, compiled once.
// Rules of equal text are the same ruleset, so that a thousand Deployments
// share one.
type ruleset struct {
	key        string
	maxRaw     int
	feedback   []feedbackRule
	conditions []conditionRule
	completes  bool // a rule decides when the object is complete
	wellKnown  *wellKnown
}

type feedbackRule struct {
	wellKnown bool
	paths     []feedbackPath
}

type feedbackPath struct {
	name, version string
	path          *rules.Path
	err           error
	// optional: a path without a value is no error.
	optional bool
}

// rulesets compiles rulesets and caches them by their text. It belongs to one
// goroutine; a ruleset itself is safe for concurrent use.
type rulesets struct {
	maxRaw    int
	byText    map[string]*ruleset
	wellKnown *wellKnown
	env       *conditionEnv // made for the first condition rule
}

func newRulesets(maxRaw int) *rulesets {
	return &rulesets{maxRaw: maxRaw, byText: map[string]*ruleset{}, wellKnown: newWellKnown()}
}

// compiled returns the compiled rules, nil when there are none.
func (s *rulesets) compiled(feedback []workv1.FeedbackRule, conditions []workv1.ConditionRule) *ruleset {
	if len(feedback) == 0 && len(conditions) == 0 {
		return nil
	}
	text, err := json.Marshal([]any{feedback, conditions})
	if err != nil {
		return nil // not reached: the rules consist of strings
	}
	if r, ok := s.byText[string(text)]; ok {
		return r
	}
	r := &ruleset{key: hexSHA256(text)[:16], maxRaw: s.maxRaw, wellKnown: s.wellKnown}
	for _, rule := range feedback {
		c := feedbackRule{wellKnown: rule.Type == workv1.WellKnownStatusType}
		if rule.Type == workv1.JSONPathsType {
			for _, p := range rule.JsonPaths {
				c.paths = append(c.paths, compilePath(p))
			}
		}
		r.feedback = append(r.feedback, c)
	}
	if len(conditions) > 0 && s.env == nil {
		s.env = newConditionEnv()
	}
	for _, rule := range conditions {
		r.conditions = append(r.conditions, s.env.compile(rule))
		r.completes = r.completes || rule.Condition == workv1.ManifestComplete
	}
	s.byText[string(text)] = r
	return r
}

// refused returns rules for a Secret: none reads anything, and each of them reports that
// it is refused. It returns nil when there are none. APIs refuse such rules, too; the
// agent does not rely on them.
func (s *rulesets) refused(feedback []workv1.FeedbackRule, conditions []workv1.ConditionRule) *ruleset {
	if len(feedback) == 0 && len(conditions) == 0 {
		return nil
	}
	r := &ruleset{key: "refused"}
	if len(feedback) > 0 {
		r.key += " feedback"
		r.feedback = []feedbackRule{{paths: []feedbackPath{{err: errors.New(work.SecretRulesRefused)}}}}
	}
	for _, rule := range conditions {
		r.key += " " + rule.Condition
		r.conditions = append(r.conditions, conditionRule{condition: rule.Condition, invalid: work.SecretRulesRefused})
	}
	return r
}

func compilePath(p workv1.JsonPath) feedbackPath {
	c := feedbackPath{name: p.Name, version: p.Version}
	var err error
	if c.path, err = rules.ParsePath("{" + p.Path + "}"); err != nil {
		c.err = fmt.Errorf("failed to parse json path %s of %s with error: %v", p.Path, p.Name, err)
	}
	return c
}

// read evaluates the rules on an object's content. The rules see Secrets inside the object, as those of a work in a
// work, with masked values, and a path to such a value is refused.
func (r *ruleset) read(gvk schema.GroupVersionKind, content map[string]any) feedback {
	var f feedback
	hasSecret := work.HasSecret(content)
	if hasSecret {
		content = runtime.DeepCopyJSON(content) // the watch has the original
		work.MaskSecrets(content)
	}
	var errs []error
	for _, rule := range r.feedback {
		var ruleErrs []error
		paths := rule.paths
		if rule.wellKnown {
			if paths = r.wellKnown.paths[gvk]; len(paths) == 0 {
				ruleErrs = append(ruleErrs, fmt.Errorf("cannot find the wellknown statuses for resource with gvk %s",
					gvk))
			}
		}
		for _, p := range paths {
			if p.version != "" && p.version != gvk.Version {
				ruleErrs = append(ruleErrs, fmt.Errorf(
					"version set in the path %s is not matched for the related resource", p.name))
				continue
			}
			value, err := p.find(content, r.maxRaw)
			if value != nil && hasSecret && hasMask(value.Value) {
				err = fmt.Errorf("%s of %s: %s", p.path, p.name, work.SecretRulesRefused)
			}
			if err != nil {
				ruleErrs = append(ruleErrs, err)
				continue
			}
			if value != nil {
				f.Values = append(f.Values, *value)
			}
		}
		if err := utilerrors.NewAggregate(ruleErrs); err != nil {
			errs = append(errs, err)
		}
	}
	if err := utilerrors.NewAggregate(errs); err != nil {
		f.Err = err.Error()
	}
	f.Conditions = evaluate(r.conditions, gvk, content)
	return f
}

// find returns the one value at the path, nil when there is none. Several
// results are a list.
func (p *feedbackPath) find(content map[string]any, maxRaw int) (*workv1.FeedbackValue, error) {
	if p.err != nil {
		return nil, p.err
	}
	results, err := p.path.Find(content)
	if err != nil {
		if p.optional {
			return nil, nil
		}
		return nil, fmt.Errorf("failed to find value for %s with error: %v", p.name, err)
	}
	if len(results) == 0 {
		return nil, nil
	}
	var value any = results
	if len(results) == 1 {
		value = results[0]
	}
	field, err := fieldValue(p.name, value, maxRaw)
	if err != nil || field == nil {
		return nil, err
	}
	return &workv1.FeedbackValue{Name: p.name, Value: *field}, nil
}

// hasMask reports whether a value has work.Mask in the place of a Secret's value.
func hasMask(v workv1.FieldValue) bool {
	return v.Type == workv1.String && *v.String == work.Mask ||
		v.Type == workv1.JsonRaw && strings.Contains(*v.JsonRaw, `"`+work.Mask+`"`)
}

func fieldValue(name string, value any, maxRaw int) (*workv1.FieldValue, error) {
	switch v := value.(type) {
	case nil:
		return nil, nil
	case int64:
		return &workv1.FieldValue{Type: workv1.Integer, Integer: &v}, nil
	case string:
		return &workv1.FieldValue{Type: workv1.String, String: &v}, nil
	case bool:
		return &workv1.FieldValue{Type: workv1.Boolean, Boolean: &v}, nil
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("failed to parse the resource to json string for name %s: %v", name, err)
	}
	if len(raw) > maxRaw {
		return nil,
			fmt.Errorf("the length of returned json raw string for name %s is larger than the maximum length %d", name,
				maxRaw)
	}
	s := string(raw)
	return &workv1.FieldValue{Type: workv1.JsonRaw, JsonRaw: &s}, nil
}

// matchConfig finds the options of one object among a work's. Each field is
// taken from the first matching option that sets it, as OCM does.
func matchConfig(id identity, options []workv1.ManifestConfigOption) workv1.ManifestConfigOption {
	var found workv1.ManifestConfigOption
	for _, o := range options {
		r := o.ResourceIdentifier
		if r.Group != id.Group || r.Resource != id.Resource || !matchesWildcard(r.Namespace, id.Namespace) ||
			!matchesWildcard(r.Name, id.Name) {
			continue
		}
		if len(found.FeedbackRules) == 0 {
			found.FeedbackRules = o.FeedbackRules
		}
		if found.UpdateStrategy == nil {
			found.UpdateStrategy = o.UpdateStrategy
		}
		if len(found.ConditionRules) == 0 {
			found.ConditionRules = o.ConditionRules
		}
	}
	return found
}

// matchesWildcard reports whether s matches a pattern in which * matches any number of
// characters.
func matchesWildcard(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == s
	}
	if !strings.HasPrefix(s, parts[0]) {
		return false
	}
	s = s[len(parts[0]):]
	for _, p := range parts[1 : len(parts)-1] {
		i := strings.Index(s, p)
		if i < 0 {
			return false
		}
		s = s[i+len(p):]
	}
	return strings.HasSuffix(s, parts[len(parts)-1])
}
