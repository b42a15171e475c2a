package apiserver

import (
	"k8s.io/apiserver/pkg/authentication/request/union"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"

	"atoll.dev/kube/issuers"
)

// admitIssuers lets the bearers of tokens of the customer's issuers in, after the plane's own ways to prove an identity
// have been tried. Upstream's way, a file of structured authentication configuration, would have the plane connect to
// each issuer, and would use no new configuration before all issuers of it answer.
func admitIssuers(config *app.Config, trusted *issuers.Authenticator) {
	for _, c := range []*genericapiserver.Config{
		config.KubeAPIs.ControlPlane.Generic,
		&config.ApiExtensions.GenericConfig.Config,
		&config.Aggregator.GenericConfig.Config,
	} {
		c.Authentication.Authenticator = union.New(c.Authentication.Authenticator,
			trusted.Request(c.Authentication.APIAudiences))
	}
}
