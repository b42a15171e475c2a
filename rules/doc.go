// Package rules evaluates what users write: CEL expressions and JSONPaths.
//
// Both are compiled once and may then be evaluated by any number of
// goroutines, over values as encoding/json or Kubernetes' unstructured objects
// have them (nil, bool, int64, float64, string, []any, map[string]any), which
// are read in place and never copied or changed. Whatever the text or the
// value, an evaluation ends: its cost is limited, an expression ends with its
// context, and a panic becomes an error.
//
// An [Env] has the variables and functions that expressions may use; it makes
// [Program]s, or [Params]: expressions that have names and may use each
// other. A [Path] is a JSONPath as kubectl reads it.
//
// The package is a tool: it knows nothing of agents, sentinels or adapters,
// and imports no other package of Atoll.
package rules
