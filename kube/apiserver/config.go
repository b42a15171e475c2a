package apiserver

import (
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/util/webhook"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
)

// newConfig is upstream's app.NewConfig with an egress selector of our own. Upstream reads a selector from a file that
// names proxies, and would use it for etcd, too. Ours is set when etcd's storage has been configured, and before
// anything else has taken a dialer.
func newConfig(o options.CompletedOptions, plane Options) (*app.Config, error) {
	generic, informers, storage, err := buildGenericConfig(o.CompletedOptions,
		[]*runtime.Scheme{legacyscheme.Scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme},
		controlplane.DefaultAPIResourceConfigSource(), plane.Self)
	if err != nil {
		return nil, err
	}
	quiet, err := newQuietCaches(o.Etcd, plane.Clock, plane.MaxWatchEvents)
	if err != nil {
		return nil, err
	}
	generic.RESTOptionsGetter = quiet(generic.RESTOptionsGetter)
	generic.EgressSelector = egressselector.NewEgressSelectorWithMap(map[egressselector.EgressType]utilnet.DialFunc{
		egressselector.Cluster:      plane.Egress,
		egressselector.ControlPlane: plane.Egress, // webhooks by URL
	})
	kube, resolver, initializers, err := app.CreateKubeAPIServerConfig(o, generic, informers, storage)
	if err != nil {
		return nil, err
	}
	c := kube.ControlPlane
	extensions, err := controlplaneapiserver.CreateAPIExtensionsConfig(*c.Generic, c.VersionedInformers, initializers,
		o.CompletedOptions, o.MasterCount, resolver, webhook.NewDefaultAuthenticationInfoResolverWrapper(c.ProxyTransport,
			c.Generic.EgressSelector, c.Generic.LoopbackClientConfig, c.Generic.TracerProvider))
	if err != nil {
		return nil, err
	}
	extensions.GenericConfig.RESTOptionsGetter = quiet(extensions.GenericConfig.RESTOptionsGetter)
	extensions.ExtraConfig.CRDRESTOptionsGetter = quiet(extensions.ExtraConfig.CRDRESTOptionsGetter)
	aggregator, err := controlplaneapiserver.CreateAggregatorConfig(*c.Generic, o.CompletedOptions, c.VersionedInformers,
		resolver, c.ProxyTransport, c.Extra.PeerProxy, initializers)
	if err != nil {
		return nil, err
	}
	aggregator.GenericConfig.RESTOptionsGetter = quiet(aggregator.GenericConfig.RESTOptionsGetter)
	return &app.Config{Options: o, KubeAPIs: kube, ApiExtensions: extensions, Aggregator: aggregator}, nil
}
