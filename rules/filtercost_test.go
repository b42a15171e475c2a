package rules_test

import (
	"errors"
	"strings"
	"testing"

	"atoll.dev/rules"
)

// A filter charges each item that it reads, also when its condition is the item itself, so that a path that names one
// list many times ends with ErrCost before it has collected the list that often.
func TestFilterWithoutOperatorIsCharged(t *testing.T) {
	list := make([]any, 50_000)
	for i := range list {
		list[i] = int64(1)
	}
	path, err := rules.ParsePath("{['x'" + strings.Repeat(",'x'", 99) + "][?(@)]}")
	if err != nil {
		t.Fatal(err)
	}
	found, err := path.Find(map[string]any{"x": list})
	if !errors.Is(err, rules.ErrCost) {
		t.Fatalf("Find returned %d values and the error %v, want ErrCost", len(found), err)
	}
}
