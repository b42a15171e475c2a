package apiserver

import (
	"fmt"
	"net"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"k8s.io/kubernetes/pkg/controlplane/apiserver/options"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/pkg/kubeapiserver"

	noopoteltrace "go.opentelemetry.io/otel/trace/noop"

	"atoll.dev/kube/inprocess"
)

// resync is how often the API server's informers hand all their objects to their handlers again, as upstream.
const resync = 10 * time.Minute

// buildGenericConfig is upstream's controlplaneapiserver.BuildGenericConfig with a client of itself that needs no
// connection. Upstream makes a certificate with an RSA key for that client at each start, and connects by TLS.
//
// It leaves out what a plane does not configure: tracing, and upstream's own files for an egress selector.
func buildGenericConfig(s options.CompletedOptions, schemes []*runtime.Scheme,
	resources *serverstorage.ResourceConfig, self *inprocess.Server) (
	*genericapiserver.Config, informers.SharedInformerFactory, *serverstorage.DefaultStorageFactory, error) {
	c := genericapiserver.NewConfig(legacyscheme.Codecs)
	c.Flagz = s.Flagz
	c.MergedResourceConfig = resources
	if err := s.GenericServerRunOptions.ApplyTo(c); err != nil {
		return nil, nil, nil, err
	}
	if err := s.SecureServing.SecureServingOptions.ApplyTo(&c.SecureServing); err != nil {
		return nil, nil, nil, err
	}
	var err error
	if c.LoopbackClientConfig, err = loopbackConfig(c.SecureServing.Listener, self); err != nil {
		return nil, nil, nil, err
	}
	client, err := kubernetes.NewForConfig(c.LoopbackClientConfig)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("the API server's client of itself: %w", err)
	}
	shared := informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTransform(withoutManagedFields))

	if err := s.Features.ApplyTo(c, client, shared); err != nil {
		return nil, nil, nil, err
	}
	if err := s.APIEnablement.ApplyTo(c, resources, legacyscheme.Scheme); err != nil {
		return nil, nil, nil, err
	}
	definitions := openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions)
	namer := openapinamer.NewDefinitionNamer(schemes...)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	c.OpenAPIConfig.Info.Title = "Kubernetes"
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	c.OpenAPIV3Config.Info.Title = "Kubernetes"
	c.LongRunningFunc = filters.BasicLongRunningRequestCheck(sets.NewString("watch", "proxy"),
		sets.NewString("attach", "exec", "proxy", "log", "portforward"))

	s.Etcd.StorageConfig.Transport.TracerProvider = noopoteltrace.NewTracerProvider()
	storageConfig := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(c.EffectiveVersion)
	storageConfig.APIResourceConfig = c.MergedResourceConfig
	storageConfig.DefaultResourceEncoding.SetEffectiveVersion(c.EffectiveVersion)
	storage, err := storageConfig.Complete(s.Etcd).New()
	if err != nil {
		return nil, nil, nil, err
	}
	storage.StorageConfig.StorageObjectCountTracker = c.StorageObjectCountTracker
	if err := s.Etcd.ApplyWithStorageFactoryTo(storage, c); err != nil {
		return nil, nil, nil, err
	}

	ctx := wait.ContextForChannel(c.DrainedNotify())
	err = s.Authentication.ApplyTo(ctx, &c.Authentication, c.SecureServing, c.EgressSelector, c.OpenAPIConfig,
		c.OpenAPIV3Config, client, shared, c.APIServerID)
	if err != nil {
		return nil, nil, nil, err
	}
	c.Authentication.Authenticator = union.New(authenticator.RequestFunc(inprocess.Authenticate),
		c.Authentication.Authenticator)
	c.Authorization.Authorizer, c.RuleResolver, _, err = controlplaneapiserver.BuildAuthorizer(ctx, s, c.EgressSelector,
		c.APIServerID, shared)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("the authorization's configuration: %w", err)
	}
	if err := s.Audit.ApplyTo(c); err != nil {
		return nil, nil, nil, err
	}
	c.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	return c, shared, storage, nil
}

// loopbackConfig returns the configuration of the API server's clients of itself. Where upstream needs an address and
// not a client, such as for a webhook of the Service kubernetes, it takes that of the listener.
func loopbackConfig(l net.Listener, self *inprocess.Server) (*rest.Config, error) {
	host, port, err := genericapiserver.LoopbackHostPort(l.Addr().String())
	if err != nil {
		return nil, err
	}
	c := self.Config("https://"+net.JoinHostPort(host, port), &user.DefaultInfo{
		Name: user.APIServerUser, Groups: []string{user.AllAuthenticated, user.SystemPrivilegedGroup},
	})
	c.ContentType = runtime.ContentTypeProtobuf
	return c, nil
}

// withoutManagedFields takes from an object of the informers what no part of the API server reads.
func withoutManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}
