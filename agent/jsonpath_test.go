package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/jsonpath"
	"pgregory.net/rapid"

	"atoll.dev/rules"
)

// Our JSONPath finds the values of Kubernetes' implementation, for which authors write their paths.
func TestJSONPathsMatchKubernetes(t *testing.T) {
	var documents, compared int
	rapid.Check(t, func(t *rapid.T) {
		doc := drawDocument(t)
		documents++
		for range 40 {
			compared += comparePaths(t, drawPath(t), doc)
		}
	})
	if compared < documents {
		t.Errorf("only %d paths found anything in %d documents", compared, documents)
	}
	t.Logf("%d paths found something in %d documents", compared, documents)
}

// comparePaths returns how many of the two found something.
func comparePaths(t *rapid.T, path string, doc map[string]any) int {
	theirs := jsonpath.New("p").AllowMissingKeys(true)
	theirErr := theirs.Parse("{" + path + "}")
	var want []any
	if theirErr == nil {
		found, err := theirs.FindResults(doc)
		if theirErr = err; err == nil && len(found) > 0 {
			for _, v := range found[0] {
				want = append(want, v.Interface())
			}
		}
	}
	ours, err := rules.ParsePath("{" + path + "}")
	var got []any
	if err == nil {
		got, err = ours.Find(doc)
	}
	if (err == nil) != (theirErr == nil) {
		t.Fatalf("%s in %v: ours %v, theirs %v", path, doc, err, theirErr)
	}
	if err != nil {
		return 0
	}
	if strings.ContainsAny(path, "*") || strings.Contains(path, "..") {
		// The order of an object's fields is theirs to choose.
		byText := func(a, b any) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) }
		slices.SortFunc(want, byText)
		slices.SortFunc(got, byText)
	}
	if diff := gocmp.Diff(want, got); diff != "" && len(want)+len(got) > 0 {
		t.Fatalf("%s in %v: (-theirs +ours)\n%s", path, doc, diff)
	}
	return min(len(want), 1)
}

var pathKeys = []string{"a", "b", "status", "conditions", "type", "x.y/z"}

func drawDocument(t *rapid.T) map[string]any {
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		leaves := []*rapid.Generator[any]{
			rapid.SampledFrom([]any{"Ready", "True", "", "a b", true, false, 1.5}),
			rapid.Custom(func(t *rapid.T) any { return rapid.Int64Range(-2, 5).Draw(t, "n") }),
		}
		if depth == 0 {
			return rapid.OneOf(leaves...)
		}
		return rapid.OneOf(append(leaves,
			rapid.Custom(func(t *rapid.T) any {
				return rapid.MapOfN(rapid.SampledFrom(pathKeys), value(depth-1), 0, 5).Draw(t, "map")
			}),
			rapid.Custom(func(t *rapid.T) any { return rapid.SliceOfN(value(depth-1), 1, 4).Draw(t, "list") }),
			rapid.Custom(func(t *rapid.T) any { // conditions
				list := []any{}
				for range rapid.IntRange(1, 3).Draw(t, "n") {
					list = append(list, map[string]any{"type": rapid.SampledFrom([]any{"Ready", "B"}).Draw(t, "type"),
						"a": rapid.Int64Range(0, 3).Draw(t, "a")})
				}
				return list
			}))...)
	}
	return rapid.MapOfN(rapid.SampledFrom(pathKeys), value(3), 3, 6).Draw(t, "doc")
}

// drawPath draws paths that Kubernetes' parser accepts, except where ours differs on purpose (see
// rules.Path): the characters of strings, keys in double quotes, integers compared with fractions,
// and empty slices, such as [*] of an empty list: after one, Kubernetes' implementation skips the
// lists that follow.
func drawPath(t *rapid.T) string {
	field := func() string {
		key := strings.NewReplacer(".", `\.`).Replace(rapid.SampledFrom(pathKeys).Draw(t, "key"))
		if rapid.Bool().Draw(t, "quoted") {
			return "['" + key + "']"
		}
		return "." + key
	}
	path := ""
	for range rapid.IntRange(1, 4).Draw(t, "steps") {
		switch rapid.IntRange(0, 9).Draw(t, "step") {
		case 0:
			path += "[*]"
		case 1:
			path += fmt.Sprintf("[%d]", rapid.IntRange(-3, 3).Draw(t, "index"))
		case 2:
			path += rapid.SampledFrom([]string{"[0:2]", "[:1]", "[::2]", "[0,1]", "['a','b']", "[0,-1]"}).Draw(
				t, "slice")
		case 3:
			path += rapid.SampledFrom([]string{
				`[?(@.type=="Ready")]`, `[?(@.type != 'Ready')]`, `[?(@.a>1)]`, `[?(@.a<=2)]`, `[?(@.a)]`,
				`[?(@.type==@.type)]`, `[?(@.a==true)]`, `[?(@=="Ready")]`,
			}).Draw(t, "filter")
		case 4:
			return path + "..type" + field() // before an index, the order of what is found matters
		default:
			path += field()
		}
	}
	return path
}

// For any text that Kubernetes' parser accepts, ours accepts it or has a listed reason to refuse
// it.
func FuzzJSONPathsMatchKubernetes(f *testing.F) {
	for _, s := range []string{".a.b", ".l[0:2:1]", `.c[?(@.type=="Ready")].a`, "..type", ".a['b','c']", ".l[-1]",
		".a.*", "['x\\.y/z']", "1", "true", "'x'", ".a[ 0 , 1 ]"} {
		f.Add(s, `{"a":{"b":1},"l":[1,2],"c":[{"type":"Ready","a":"x"}]}`)
	}
	f.Fuzz(func(t *testing.T, path, text string) {
		var doc map[string]any
		if json.Unmarshal([]byte(text), &doc) != nil || strings.ContainsAny(path, `{}"*?`) ||
			strings.Contains(path, "..") || strings.Contains(path, ":") {
			return
		}
		theirs := jsonpath.New("p").AllowMissingKeys(true)
		if theirs.Parse("{"+path+"}") != nil {
			return
		}
		found, err := theirs.FindResults(doc)
		if err != nil || len(found) != 1 {
			return
		}
		ours, err := rules.ParsePath("{" + path + "}")
		if err != nil {
			t.Fatalf("%q: %v", path, err)
		}
		got, err := ours.Find(doc)
		if err != nil {
			t.Fatalf("%q: %v", path, err)
		}
		var want []any
		for _, v := range found[0] {
			want = append(want, v.Interface())
		}
		if fmt.Sprint(want) != fmt.Sprint(got) {
			t.Fatalf("%q in %s: theirs %v, ours %v", path, text, want, got)
		}
	})
}
