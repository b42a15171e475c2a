// Package policy decides by Cedar policies which actions the principals of an account may take.
//
// An account writes policies in Cedar and attaches each to principals or groups. Index.Decide
// evaluates the policies that are attached to a principal, to its role or to one of its groups: a
// forbid wins over every permit, and without a permit the answer is no. Check validates a policy
// against the schema of the Platform API before it is stored, so that a stored policy cannot name
// an action, an entity type or an attribute that does not exist.
//
// The package is pure: no clock, no network, no database. Package access, which stores policies and
// knows the callers, imports it; nothing else does but tests and fronts.
package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	publicast "github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// Bounds of a policy. They bound the time that one validation and one decision take.
const (
	MaxText       = 16 << 10 // bytes
	MaxStatements = 50
	maxDepth      = 50 // of parentheses, brackets and braces
)

// Policy is a parsed and compiled policy: one or more statements of Cedar.
type Policy struct {
	statements []statement
}

// statement is a compiled statement, with the parts of its scope that Index compares itself.
type statement struct {
	source   *ast.Policy   // as it was parsed
	compiled *cedar.Policy // without the parts of its scope that the fields below have
	forbids  bool
	actions  actionSet // the actions of its scope
	// principal and resource are the only ones that the scope matches; zero: others, too.
	principal, resource types.EntityUID
	parent              types.EntityUID // that the resource must be in, or be; zero: none
	tag                 *tag            // without which the conditions are false; nil: none
	// readsResource: a condition reads attributes, tags or parents of the resource.
	readsResource bool
}

// Parse parses and compiles a policy without validating it against the schema. Its errors have the
// position of the mistake.
func Parse(text string) (*Policy, error) {
	if err := checkSize(text); err != nil {
		return nil, err
	}
	list, err := cedar.NewPolicyListFromBytes("policy", []byte(withoutSlots(text)))
	if err != nil {
		return nil, fmt.Errorf("the policy is not Cedar: %s", strings.TrimPrefix(err.Error(), "parser error: "))
	}
	if len(list) == 0 {
		return nil, errors.New("the policy has no statement; begin with permit or forbid")
	}
	if len(list) > MaxStatements {
		return nil, fmt.Errorf("the policy has %d statements; at most %d are possible", len(list), MaxStatements)
	}
	p := &Policy{statements: make([]statement, len(list))}
	for i, c := range list {
		p.statements[i] = describe(c)
	}
	return p, nil
}

// Statements returns how many statements the policy has.
func (p *Policy) Statements() int { return len(p.statements) }

// Check parses a policy and validates it against the schema. Its error names the position of each
// statement that is wrong, and why it is.
func Check(text string) error {
	p, err := Parse(text)
	if err != nil {
		return err
	}
	var wrong []error
	for i, s := range p.statements {
		if err := validator().Policy("", s.source); err != nil {
			at := s.source.Position
			wrong = append(wrong, fmt.Errorf("statement %d, at line %d column %d: %s", i+1, at.Line, at.Column,
				strings.ReplaceAll(err.Error(), "\n", "; ")))
		}
	}
	return errors.Join(wrong...)
}

// checkSize refuses a text whose parsing or validation would take long. Brackets within string
// literals count, too, so that this check needs no parser.
func checkSize(text string) error {
	if len(text) > MaxText {
		return fmt.Errorf("the policy has %d bytes; at most %d are possible", len(text), MaxText)
	}
	depth := 0
	for i := range len(text) {
		switch text[i] {
		case '(', '[', '{':
			if depth++; depth > maxDepth {
				return fmt.Errorf("the policy nests parentheses deeper than %d, at byte %d", maxDepth, i)
			}
		case ')', ']', '}':
			depth--
		}
	}
	return nil
}

// slots are the forms of a scope that templates of Amazon Verified Permissions have. The principal
// or group that a policy is attached to takes the place of the slot.
var slots = []string{"?principal", "?group"}

// withoutSlots replaces "principal == ?principal" and "principal in ?principal" by "principal" and
// as many blanks, so that positions stay. An attachment already limits a policy to its target.
func withoutSlots(text string) string {
	out := []byte(text)
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '"': // a string literal
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case strings.HasPrefix(text[i:], "//"): // a comment
			for i < len(text) && text[i] != '\n' {
				i++
			}
		case text[i] == '?':
			blankSlot(out, i)
		}
	}
	return string(out)
}

// blankSlot overwrites the slot at an offset with blanks, together with the operator before it, if the
// text before it is "principal ==" or "principal in".
func blankSlot(text []byte, at int) {
	end := 0
	for _, slot := range slots {
		if rest, ok := strings.CutPrefix(string(text[at:]), slot); ok && !isWord(rest) {
			end = at + len(slot)
		}
	}
	before := strings.TrimRight(string(text[:at]), " \t\r\n")
	operand, ok := strings.CutSuffix(before, "==")
	if !ok {
		operand, ok = strings.CutSuffix(before, " in")
	}
	if end == 0 || !ok || !strings.HasSuffix(strings.TrimRight(operand, " \t\r\n"), "principal") {
		return // the parser refuses the slot
	}
	for i := len(operand); i < end; i++ {
		if text[i] != '\n' {
			text[i] = ' '
		}
	}
}

// isWord reports whether a text begins with a character of an identifier.
func isWord(s string) bool {
	return s != "" && (s[0] == '_' || '0' <= s[0] && s[0] <= '9' || 'a' <= s[0]|0x20 && s[0]|0x20 <= 'z')
}

// describe returns a compiled statement with the parts of its scope that Index compares itself: actions
// and single entities. To compare them is much faster than to evaluate them.
func describe(c *cedar.Policy) statement {
	source := (*ast.Policy)(c.AST())
	set, isCompared := actionsOf(source.Action)
	s := statement{source: source, forbids: c.Effect() == cedar.Forbid, actions: set, tag: requiredTag(source.Conditions)}
	rest := *source
	if isCompared {
		rest.Action = ast.Scope{}.All()
	}
	if scope, ok := source.Principal.(ast.ScopeTypeEq); ok {
		s.principal, rest.Principal = scope.Entity, ast.Scope{}.All()
	}
	switch scope := source.Resource.(type) {
	case ast.ScopeTypeEq:
		s.resource, rest.Resource = scope.Entity, ast.Scope{}.All()
	case ast.ScopeTypeIn:
		s.parent = scope.Entity
	case ast.ScopeTypeIsIn:
		s.parent = scope.Entity
	}
	for _, condition := range source.Conditions {
		ast.Inspect(ast.NewNode(condition.Body), func(n ast.IsNode) bool {
			v, isVariable := n.(ast.NodeTypeVariable)
			s.readsResource = s.readsResource || isVariable && v.Name == "resource"
			return !s.readsResource
		})
	}
	s.compiled = cedar.NewPolicyFromAST((*publicast.Policy)(&rest))
	return s
}

// actionSet is a set of actions by their place in the table of actions. The place after the last is
// that of every action that the table does not have.
type actionSet [2]uint64

func (s *actionSet) add(n int)           { s[n/64] |= 1 << (n % 64) }
func (s *actionSet) contains(n int) bool { return s[n/64]&(1<<(n%64)) != 0 }

var everyAction = actionSet{^uint64(0), ^uint64(0)}

// numberOf returns the place of an action in the table.
func numberOf(name string) int {
	if n, known := numbers[name]; known {
		return n
	}
	return len(actions)
}

var numbers = func() map[string]int {
	if len(actions) >= 64*len(actionSet{}) {
		panic("policy: an actionSet has too few bits for the table of actions")
	}
	m := make(map[string]int, len(actions))
	for i, a := range actions {
		m[a.Name] = i
	}
	return m
}()

// actionsOf returns the actions that a scope matches, those of groups of actions included. isCompared
// is false for a scope that Cedar evaluates: it may match every action.
func actionsOf(scope ast.IsActionScopeNode) (matched actionSet, isCompared bool) {
	add := func(uid types.EntityUID) {
		for i, a := range actions {
			if uid.Type == actionType && (string(uid.ID) == a.Name || slices.Contains(a.Groups, string(uid.ID))) {
				matched.add(i)
			}
		}
	}
	switch s := scope.(type) {
	case ast.ScopeTypeAll:
		return everyAction, false
	case ast.ScopeTypeEq:
		if n, known := numbers[string(s.Entity.ID)]; known && s.Entity.Type == actionType {
			matched.add(n)
		}
	case ast.ScopeTypeIn:
		add(s.Entity)
	case ast.ScopeTypeInSet:
		for _, uid := range s.Entities {
			add(uid)
		}
	default:
		return everyAction, false
	}
	return matched, true
}
