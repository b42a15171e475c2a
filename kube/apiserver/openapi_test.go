package apiserver

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"sync"
	"testing"

	"github.com/emicklei/go-restful/v3"
	appsv1 "k8s.io/api/apps/v1"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
)

// Clients ask for different documents at the same time, and Go ends a process in which two goroutines change a map, or
// one changes what another reads. So a build changes nothing that it shares with others, and several give the same.
func TestABuildOfADocumentChangesNothingShared(t *testing.T) {
	config := genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions,
		openapinamer.NewDefinitionNamer(legacyscheme.Scheme))
	before := map[string]spec.Extensions{}
	for name, definition := range config.Definitions {
		before[name] = maps.Clone(definition.Schema.Extensions)
	}
	const name = "apis/apps/v1"
	service := new(restful.WebService).Path("/" + name)
	service.Route(service.GET("deployments").Operation("listDeployments").Writes(appsv1.DeploymentList{}).
		To(func(*restful.Request, *restful.Response) {}))
	var builds sync.WaitGroup
	documents := make([]string, 8)
	for i := range documents {
		builds.Go(func() {
			answer := httptest.NewRecorder()
			buildV3(service, config).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, openAPIV3+"/"+name, nil))
			documents[i] = answer.Body.String()
		})
	}
	builds.Wait()
	for _, document := range documents {
		if len(document) < 10_000 || document != documents[0] {
			t.Fatalf("a document has %d bytes, the first one %d", len(document), len(documents[0]))
		}
	}
	for name, definition := range config.Definitions {
		if !reflect.DeepEqual(definition.Schema.Extensions, before[name]) {
			t.Errorf("the extensions of %s were %v and are %v", name, before[name], definition.Schema.Extensions)
		}
	}
}
