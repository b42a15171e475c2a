package apiserver

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/emicklei/go-restful/v3"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
)

// Upstream builds the OpenAPI documents of all built-in groups during the start, and encodes those of v3 to learn their
// hashes: a third of the processor time of a start, for documents that most planes are never asked for. Here they are
// built when somebody asks for one (decision 180).
//
// The aggregator, which serves /openapi to clients, asks this handler for the documents of the built-in groups. Those
// of custom resources and of aggregated APIs come from elsewhere and are as upstream's.

const (
	openAPIV2 = "/openapi/v2"
	openAPIV3 = "/openapi/v3"
)

// openAPI serves the OpenAPI documents of an API server: one of v2, and one of v3 for each of its web services, such as
// an API group of one version.
type openAPI struct {
	v2   func() (http.Handler, error)
	v3   map[string]document // by their names, such as apis/apps/v1
	root []byte              // the list of v3 documents with their hashes, as JSON
}

// document is one OpenAPI v3 document.
type document struct {
	hash    string
	handler func() http.Handler // its first call builds the document
}

// installOpenAPI registers handlers of the OpenAPI documents with a server, which was made with
// SkipOpenAPIInstallation and so has none of its own. configuration is the completed configuration of the server.
func installOpenAPI(server *genericapiserver.GenericAPIServer, configuration *genericapiserver.Config) error {
	services := server.Handler.GoRestfulContainer
	o := &openAPI{v3: map[string]document{}}
	o.v2 = sync.OnceValues(func() (http.Handler, error) { return buildV2(services, configuration.OpenAPIConfig) })
	build := featuresAndModules()
	for _, service := range services.RegisteredWebServices() {
		o.v3[documentName(service)] = document{hash: hashDocument(service, build), handler: sync.OnceValue(
			func() http.Handler { return buildV3(service, configuration.OpenAPIV3Config) })}
	}
	// The servers that this one delegates to serve some documents of the same names, such as that of /version, with
	// upstream's hashes. This server leaves those documents to them. The aggregator takes a document from either server,
	// so a second hash would redirect a client from one server to the other.
	for next := server.NextDelegate(); next != nil; next = next.NextDelegate() {
		if other, ok := next.(*genericapiserver.GenericAPIServer); ok {
			for _, service := range other.Handler.GoRestfulContainer.RegisteredWebServices() {
				delete(o.v3, documentName(service))
			}
		}
	}
	paths := map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}
	for name := range o.v3 {
		paths[name] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: o.url(name)}
	}
	var err error
	if o.root, err = json.Marshal(handler3.OpenAPIV3Discovery{Paths: paths}); err != nil {
		return fmt.Errorf("encoding the list of OpenAPI documents: %w", err)
	}
	server.Handler.NonGoRestfulMux.HandleFunc(openAPIV2, o.serveV2)
	server.Handler.NonGoRestfulMux.HandleFunc(openAPIV3, o.serveRoot)
	server.Handler.NonGoRestfulMux.HandlePrefix(openAPIV3+"/", http.HandlerFunc(o.serveV3))
	return nil
}

// buildV2 builds the document of OpenAPI v2 and returns its handler. It does what upstream's routes.OpenAPI.InstallV2
// does, and returns an error where upstream ends the process.
func buildV2(services *restful.Container, config *common.Config) (http.Handler, error) {
	swagger, err := builder.BuildOpenAPISpecFromRoutes(
		restfuladapter.AdaptWebServices(services.RegisteredWebServices()), config)
	if err != nil {
		return nil, fmt.Errorf("building the OpenAPI v2 document: %w", err)
	}
	swagger.Definitions = handler.PruneDefaults(swagger.Definitions)
	documents := mux.NewPathRecorderMux("openapi v2")
	handler.NewOpenAPIService(swagger).RegisterOpenAPIVersionedService(openAPIV2, documents)
	return documents, nil
}

// buildV3 builds the document of one web service and returns upstream's handler of it. Upstream's builder changes the
// extensions of the definitions that it gets, and the document shares them with the caller. Several documents may be
// built and encoded at the same time, so each gets definitions of its own.
func buildV3(service *restful.WebService, shared *common.OpenAPIV3Config) http.Handler {
	config := *shared
	config.Definitions = maps.Clone(shared.Definitions)
	for name, definition := range config.Definitions {
		definition.Schema.Extensions = maps.Clone(definition.Schema.Extensions)
		config.Definitions[name] = definition
	}
	documents := mux.NewPathRecorderMux("openapi v3")
	routes.OpenAPI{V3Config: &config}.InstallV3(restful.NewContainer().Add(service), documents)
	return documents
}

func (o *openAPI) serveV2(w http.ResponseWriter, r *http.Request) {
	documents, err := o.v2()
	if err != nil {
		klog.ErrorS(err, "The OpenAPI v2 document cannot be served")
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	documents.ServeHTTP(w, r)
}

func (o *openAPI) serveRoot(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Write(o.root)
}

// serveV3 serves one document as upstream's handler3 does. Clients may cache the response to a request with the
// document's hash. A request with another hash is redirected to the URL with the right one.
func (o *openAPI) serveV3(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, openAPIV3+"/")
	d, ok := o.v3[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if have := r.URL.Query().Get("hash"); have == d.hash {
		w = cacheable{w}
	} else if have != "" {
		http.Redirect(w, r, o.url(name), http.StatusMovedPermanently)
		return
	}
	r = r.Clone(r.Context())
	r.URL.RawQuery = "" // upstream's handler has other hashes
	d.handler().ServeHTTP(w, r)
}

// url returns the path of a v3 document, with its hash as the query.
func (o *openAPI) url(name string) string {
	u := url.URL{Path: openAPIV3 + "/" + name, RawQuery: url.Values{"hash": {o.v3[name].hash}}.Encode()}
	return u.String()
}

// cacheable is a response that clients may keep for a year, unless it is an error.
type cacheable struct{ http.ResponseWriter }

func (w cacheable) WriteHeader(status int) {
	if status < http.StatusBadRequest {
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	w.ResponseWriter.WriteHeader(status)
}

// documentName returns the name that upstream gives the v3 document of a web service.
func documentName(service *restful.WebService) string {
	return strings.TrimPrefix(service.RootPath(), "/")
}

// hashDocument returns a hash of everything that decides the content of a v3 document: the routes of its web service,
// and build, the features and modules of this program, which decide the schemas of the types.
func hashDocument(service *restful.WebService, build string) string {
	h := sha256.New()
	fmt.Fprintln(h, build)
	for _, r := range service.Routes() {
		fmt.Fprintf(h, "%s %s %s %T %T %v %v %v\n", r.Method, r.Path, r.Operation, r.ReadSample, r.WriteSample,
			r.Consumes, r.Produces, r.Doc)
	}
	return fmt.Sprintf("%X", h.Sum(nil))
}

// featuresAndModules returns a text with the states of all features and the versions of all modules of this program.
func featuresAndModules() string {
	var b strings.Builder
	all := utilfeature.DefaultMutableFeatureGate.GetAll()
	for _, feature := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintln(&b, feature, utilfeature.DefaultFeatureGate.Enabled(feature))
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			for ; module != nil; module = module.Replace {
				fmt.Fprintln(&b, module.Path, module.Version, module.Sum)
			}
		}
	}
	return b.String()
}
