package restapi

import (
	"slices"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	api "atoll.dev/api/maestro"
)

func TestRoutesAndDocumentAgree(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	var documented []string
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			documented = append(documented, method+" "+path)
		}
	}
	slices.Sort(documented)
	routes := slices.DeleteFunc(Routes(), func(r string) bool { return r == "/" })
	if diff := cmp.Diff(documented, routes); diff != "" {
		t.Errorf("document (-) and routes (+) differ:\n%s", diff)
	}
}
