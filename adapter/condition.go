package adapter

// operators of conditions.
var operators = []string{
	"equals", "notEquals", "in", "notIn", "contains", "greaterThan", "lessThan", "greaterThanOrEqual", "lessThanOrEqual", "exists", "notExists",
}
