package clm

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"atoll.dev/clm/status"
	"atoll.dev/cluster"
	"atoll.dev/search"
	"atoll.dev/store"
)

// Entity describes one kind of resource: its routes, its names, its owner, and the
// adapters that must report on it. The keys are hyperfleet-api's.
type Entity struct {
	Kind   string `yaml:"kind"`
	Plural string `yaml:"plural"` // its collection in paths

	// ParentKind is the kind of the owners of resources of this kind, "" for none.
	// OnParentDelete is the effect of an owner's deletion on its resources.
	ParentKind     string       `yaml:"parent_kind"`
	OnParentDelete ParentDelete `yaml:"on_parent_delete"`

	SpecSchemaName    string `yaml:"spec_schema_name"`    // in the provider's OpenAPI file
	RequireSpecSchema bool   `yaml:"require_spec_schema"` // no start without it

	NameMinLen int `yaml:"name_min_len"` // default 1
	NameMaxLen int `yaml:"name_max_len"` // default 100

	// Expires is the member of the spec, such as expires_at, with the time of deletion in
	// RFC 3339; "" if resources never expire. A resource without the member never expires.
	Expires string `yaml:"expires"`
	// Indexed lists members of the spec, such as region or network.pod_cidr, that get an
	// index for searches by their text: spec.region='eu-west-1'.
	Indexed []string `yaml:"indexed"`

	RequiredAdapters []cluster.Adapter `yaml:"required_adapters"`
	References       []ReferenceRule   `yaml:"references"`
	Conditions       []ConditionRule   `yaml:"conditions"`

	parent   *Entity
	children []*Entity
	mapper   *status.Mapper
}

// ParentDelete is the effect of an owner's deletion on its children.
type ParentDelete string

// The values of ParentDelete.
const (
	Restrict ParentDelete = "restrict" // the owner cannot be deleted while it has children; the default
	Cascade  ParentDelete = "cascade"  // children are deleted with their owner
)

// ReferenceRule allows, or requires, references to resources of another kind.
type ReferenceRule struct {
	Type       string `yaml:"ref_type"`
	TargetKind string `yaml:"target_kind"`
	Min        int    `yaml:"min"`
	Max        int    `yaml:"max"` // 0 is any number
}

// ConditionRule makes a condition of a resource out of its adapters' reports.
type ConditionRule struct {
	Type string     `yaml:"type"`
	When Expression `yaml:"when"`

	Output struct {
		Status  Expression `yaml:"status"`
		Reason  Expression `yaml:"reason"`
		Message Expression `yaml:"message"`
	} `yaml:"output"`
}

// Expression is one CEL expression.
type Expression struct {
	Text string `yaml:"expression"`
}

// storeKind is the entity's kind in the store.
func (e *Entity) storeKind() store.Kind { return store.Kind(e.Kind) }

// Registry holds the entities of a region. It does not change while a server
// runs.
type Registry struct {
	entities []*Entity
	byKind   map[string]*Entity
	byPlural map[string]*Entity
	search   search.Schema
}

// Entities returns the entities in the order of their configuration. A resource's
// kind in the store is its entity's Kind.
func (r *Registry) Entities() []Entity {
	all := make([]Entity, len(r.entities))
	for i, e := range r.entities {
		all[i] = *e
	}
	return all
}

// EntityError names an entity with a mistake, and the mistake.
type EntityError struct {
	Index int // among the entities, from 0
	Kind  string
	Err   error
}

func (e *EntityError) Error() string {
	return fmt.Sprintf("entity %d (%s): %s", e.Index, e.Kind, e.Err)
}

func (e *EntityError) Unwrap() error { return e.Err }

const (
	// resources is the collection of all kinds.
	resources = "resources"
	maxName   = 100
)

var (
	kindForm   = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,62}$`)
	pluralForm = regexp.MustCompile(`^[a-z][a-z0-9]{0,62}$`)
	memberForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)
	fieldForm  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62}){0,7}$`)
)

// NewRegistry checks the entities and how they belong together.
func NewRegistry(entities []Entity) (*Registry, error) {
	r := &Registry{byKind: map[string]*Entity{}, byPlural: map[string]*Entity{}}
	for i := range entities {
		e := entities[i]
		if err := r.add(&e); err != nil {
			return nil, &EntityError{i, e.Kind, err}
		}
	}
	for i, e := range r.entities {
		if err := r.connect(e); err != nil {
			return nil, &EntityError{i, e.Kind, err}
		}
	}
	for i, e := range r.entities {
		if cycle := e.cycle(func(e *Entity) []*Entity {
			return slices.DeleteFunc([]*Entity{e.parent},
				isNil)
		}); cycle != "" {
			return nil, &EntityError{i, e.Kind, fmt.Errorf("it belongs to itself: %s", cycle)}
		}
		if cycle := e.cycle(r.required); cycle != "" {
			return nil, &EntityError{i, e.Kind, fmt.Errorf("it needs itself, so none could ever be created: %s", cycle)}
		}
	}
	r.search = r.newSchema()
	return r, nil
}

func isNil(e *Entity) bool { return e == nil }

func (r *Registry) add(e *Entity) error {
	if e.NameMinLen == 0 {
		e.NameMinLen = 1
	}
	if e.NameMaxLen == 0 {
		e.NameMaxLen = maxName
	}
	switch {
	case !kindForm.MatchString(e.Kind):
		return fmt.Errorf("kind %q is not a word in CamelCase", e.Kind)
	case !pluralForm.MatchString(e.Plural):
		return fmt.Errorf("plural %q is not a word in lower case", e.Plural)
	case e.Plural == "adapters":
		return fmt.Errorf("plural %q is the server's own; take another", e.Plural)
	case e.Plural == resources:
		return fmt.Errorf("plural %q means all kinds; take another", e.Plural)
	case e.Plural == "accounts":
		return fmt.Errorf("plural %q is the server's own; take another", e.Plural)
	case e.Kind == string(RequestKind), e.Kind == string(quotaKind.Kind):
		return fmt.Errorf("kind %s is the server's own; take another", e.Kind)
	case r.byKind[e.Kind] != nil:
		return fmt.Errorf("kind %s is there twice", e.Kind)
	case r.byPlural[e.Plural] != nil:
		return fmt.Errorf("plural %s is %s's, too", e.Plural, r.byPlural[e.Plural].Kind)
	case e.NameMinLen < 1, e.NameMaxLen > maxName, e.NameMinLen > e.NameMaxLen:
		return fmt.Errorf("names of %d to %d characters: between 1 and %d is possible", e.NameMinLen, e.NameMaxLen,
			maxName)
	case e.RequireSpecSchema && e.SpecSchemaName == "":
		return fmt.Errorf("require_spec_schema needs spec_schema_name")
	case slices.ContainsFunc(e.Indexed, func(field string) bool { return !fieldForm.MatchString(field) }):
		return fmt.Errorf("indexed %q are not all members of a spec", e.Indexed)
	case e.Expires != "" && !memberForm.MatchString(e.Expires):
		return fmt.Errorf("expires %q is no member of a spec", e.Expires)
	}
	switch {
	case e.ParentKind == "" && e.OnParentDelete != "":
		return fmt.Errorf("on_parent_delete needs parent_kind")
	case e.ParentKind != "" && e.OnParentDelete == "":
		e.OnParentDelete = Restrict
	case e.ParentKind != "" && e.OnParentDelete != Restrict && e.OnParentDelete != Cascade:
		return fmt.Errorf("on_parent_delete %q is neither %s nor %s", e.OnParentDelete, Restrict, Cascade)
	}
	seen := map[cluster.Adapter]bool{}
	for _, a := range e.RequiredAdapters {
		if a == "" || seen[a] {
			return fmt.Errorf("required adapter %q is empty or there twice", a)
		}
		seen[a] = true
	}
	rules := make([]status.Rule, len(e.Conditions))
	for i, c := range e.Conditions {
		rules[i] = status.Rule{Type: c.Type, When: c.When.Text, Status: c.Output.Status.Text,
			Reason: c.Output.Reason.Text, Message: c.Output.Message.Text}
	}
	var err error
	if e.mapper, err = status.NewMapper(rules); err != nil {
		return err
	}
	r.entities = append(r.entities, e)
	r.byKind[e.Kind], r.byPlural[e.Plural] = e, e
	return nil
}

func (r *Registry) connect(e *Entity) error {
	if e.ParentKind != "" {
		if e.parent = r.byKind[e.ParentKind]; e.parent == nil {
			return fmt.Errorf("parent_kind %s is not an entity", e.ParentKind)
		}
		e.parent.children = append(e.parent.children, e)
	}
	seen := map[string]bool{}
	for _, ref := range e.References {
		switch {
		case ref.Type == "" || seen[ref.Type]:
			return fmt.Errorf("ref_type %q is empty or there twice", ref.Type)
		case r.byKind[ref.TargetKind] == nil:
			return fmt.Errorf("reference %s: target_kind %s is not an entity", ref.Type, ref.TargetKind)
		case ref.Min < 0, ref.Max < 0, ref.Max > 0 && ref.Max < ref.Min:
			return fmt.Errorf("reference %s: between %d and %d is no number", ref.Type, ref.Min, ref.Max)
		}
		seen[ref.Type] = true
	}
	return nil
}

// required returns the kinds of which a resource must exist before one of e can.
func (r *Registry) required(e *Entity) (kinds []*Entity) {
	for _, ref := range e.References {
		if ref.Min > 0 {
			kinds = append(kinds, r.byKind[ref.TargetKind])
		}
	}
	return kinds
}

// cycle returns a path of kinds from e back to e, "" if there is none.
func (e *Entity) cycle(next func(*Entity) []*Entity) string {
	seen := map[*Entity]bool{}
	var walk func(at *Entity, path []string) string
	walk = func(at *Entity, path []string) string {
		for _, n := range next(at) {
			way := append(slices.Clone(path), n.Kind)
			if n == e {
				return strings.Join(way, " -> ")
			}
			if seen[n] {
				continue
			}
			seen[n] = true
			if found := walk(n, way); found != "" {
				return found
			}
		}
		return ""
	}
	return walk(e, []string{e.Kind})
}

// rule returns the rule of a type of reference, nil if the entity has none.
func (e *Entity) rule(refType string) *ReferenceRule {
	for i := range e.References {
		if e.References[i].Type == refType {
			return &e.References[i]
		}
	}
	return nil
}
