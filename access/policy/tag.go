package policy

import (
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// tag is a tag of a resource.
type tag struct{ key, value string }

// requiredTag returns the tag without which the conditions of a statement are false, and cannot fail: the first
// condition begins with
//
//	resource.hasTag("KEY") && resource.getTag("KEY") == "VALUE"
//
// after any number of "resource is TYPE". Cedar evaluates && from left to right, and stops at the first operand that
// is false, so nothing behind the comparison is evaluated for another resource. Other forms have no required tag:
// those in which something that may fail comes first, too, because an error must not be lost.
func requiredTag(conditions []ast.ConditionType) *tag {
	if len(conditions) == 0 || conditions[0].Condition != ast.ConditionWhen {
		return nil
	}
	operands := operandsOfAnd(conditions[0].Body)
	for len(operands) > 0 && isTypeTest(operands[0]) {
		operands = operands[1:]
	}
	if len(operands) < 2 {
		return nil
	}
	has, isHas := operands[0].(ast.NodeTypeHasTag)
	equals, isEquals := operands[1].(ast.NodeTypeEquals)
	if !isHas || !isEquals || !isResource(has.Left) {
		return nil
	}
	get, isGet := equals.Left.(ast.NodeTypeGetTag)
	value, isText := textOf(equals.Right)
	if !isGet {
		get, isGet = equals.Right.(ast.NodeTypeGetTag)
		value, isText = textOf(equals.Left)
	}
	if !isGet || !isText || !isResource(get.Left) {
		return nil
	}
	key, isKey := textOf(has.Right)
	if again, ok := textOf(get.Right); !isKey || !ok || again != key {
		return nil
	}
	return &tag{key, value}
}

// operandsOfAnd returns the operands of nested && in the order in which Cedar evaluates them.
func operandsOfAnd(n ast.IsNode) []ast.IsNode {
	and, ok := n.(ast.NodeTypeAnd)
	if !ok {
		return []ast.IsNode{n}
	}
	return append(operandsOfAnd(and.Left), operandsOfAnd(and.Right)...)
}

// isTypeTest reports whether an operand is "resource is TYPE", which cannot fail.
func isTypeTest(n ast.IsNode) bool {
	is, ok := n.(ast.NodeTypeIs)
	return ok && isResource(is.Left)
}

func isResource(n ast.IsNode) bool {
	v, ok := n.(ast.NodeTypeVariable)
	return ok && v.Name == "resource"
}

// textOf returns the text of a literal.
func textOf(n ast.IsNode) (string, bool) {
	v, ok := n.(ast.NodeValue)
	if !ok {
		return "", false
	}
	text, ok := v.Value.(types.String)
	return string(text), ok
}
