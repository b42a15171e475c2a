package house

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/invariants.md and the lists of testdata anew")

// invariants are those of the design, in its words.
var invariants = []string{
	"An acknowledged write is durable; every follower comes to see, for every document, a state at least as new, and " +
		"never sees a document go back",
	"A write that names a stale version is refused; no update is lost",
	"A content-equal write changes nothing and wakes nobody",
	"A follower is never skipped silently: for every document that changed it gets a state at least as new, or `410 " +
		"Gone`",
	"A request is acknowledged only after everything that records it has committed in one transaction of the service " +
		"that owns it; what others must do about it follows from the feed",
	"Desired work reaches its agent, and its status comes back, under any drop, duplication, reordering or restart; " +
		"deletions included",
	"An agent can read and write the topics of its own consumer only",
	"Maestro's database can be dropped at any moment: what CLM ordered, and the consumers, are rebuilt from CLM, and " +
		"nothing that was applied is deleted or re-created. Work that a source gave Maestro directly stays applied, " +
		"is reported as unknown, and is adopted or deleted by an operator",
	"Deletion converges from every state and leaves nothing behind",
	"No handler runs without a verified identity and a decision; every mutation is audited",
	"No secret appears in a log, an error, a metric, a process list or a CLM event. Atoll's own works carry Secrets " +
		"sealed to the agent's key; Secrets that users put into a ManifestWork are payload, masked wherever they are " +
		"shown",
	"Any process may be killed at any instruction, any number of times; the region converges when it is back",
	"A request that needs more than a quota of its account has left changes nothing, whoever asks at the same time; the " +
		"counted use is what the stored resources use",
}

// ofInvariant finds the numbers in a test's name: TestI1I5Something, TestSomethingI10.
var ofInvariant = regexp.MustCompile(`I(\d{1,2})(?:[A-Z]|$)`)

func TestEveryInvariantHasTestsAndTheDocNamesThem(t *testing.T) {
	tests := map[int][]string{}
	walkGo(t, func(path string, src []byte) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, src, 0)
		if err != nil {
			t.Fatal(err)
		}
		dir, _ := filepath.Rel("../..", filepath.Dir(path))
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") {
				continue
			}
			for _, n := range numbers(fn.Name.Name) {
				tests[n] = append(tests[n], "`"+filepath.ToSlash(dir)+"` "+fn.Name.Name)
			}
		}
	})
	for n := range invariants {
		if len(tests[n+1]) == 0 {
			t.Errorf("no test names I%d", n+1)
		}
	}
	var b strings.Builder
	b.WriteString(
		"# Invariants\n\nThe guarantees of Atoll, and the tests of each. The name of a test has the numbers of the " +
			"invariants that it tests:\n" +
			"`go test ./... -run I6` runs those of I6. The list is written by `go test ./test/house -update` and " +
			"checked by every run.\n")
	for _, n := range slices.Sorted(maps.Keys(tests)) {
		if n < 1 || n > len(invariants) {
			t.Errorf("there is no invariant I%d: %v", n, tests[n])
			continue
		}
		fmt.Fprintf(&b, "\n## I%d\n\n%s.\n\n", n, wrap(invariants[n-1], 140))
		slices.Sort(tests[n])
		for _, name := range tests[n] {
			fmt.Fprintf(&b, "- %s\n", name)
		}
	}
	const doc = "../../docs/invariants.md"
	if *update {
		if err := os.WriteFile(doc, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(doc); err != nil || string(have) != b.String() {
		t.Errorf("docs/invariants.md is out of date (%v): go test ./test/house -update", err)
	}
}

// numbers are the invariants that a test's name names.
func numbers(name string) []int {
	var found []int
	for {
		m := ofInvariant.FindStringSubmatchIndex(name)
		if m == nil {
			return found
		}
		var n int
		fmt.Sscan(name[m[2]:m[3]], &n)
		found = append(found, n)
		name = name[m[3]:]
	}
}

func TestTheNumbersInANameAreFound(t *testing.T) {
	for name, want := range map[string]string{
		"TestI1I5I6I12KillLoop": "[1 5 6 12]", "TestNoRouteRunsWithoutIdentityI10": "[10]", "TestI7AnAgent": "[7]",
		"TestInput": "[]", "TestHTTPIs503": "[]",
	} {
		if got := fmt.Sprint(numbers(name)); got != want {
			t.Errorf("numbers(%s) = %s, want %s", name, got, want)
		}
	}
}

// wrap breaks a text into lines of at most width characters, where its words allow it.
func wrap(text string, width int) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case column+1+len(word) > width:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}
