package apiserver

import (
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiserverconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authorization/path"
	authorizerunion "k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

// healthPaths are open to everyone, and the only thing that is.
var healthPaths = []string{"/livez", "/readyz", "/healthz"}

// openHealth lets anonymous requests to the health paths, and only these, through authentication and authorization. By
// upstream's means they would be refused on a new plane until its default roles exist.
func openHealth(config *app.Config) {
	var conditions []apiserverconfig.AnonymousAuthCondition
	for _, p := range healthPaths {
		conditions = append(conditions, apiserverconfig.AnonymousAuthCondition{Path: p})
	}
	anyone := anonymous.NewAuthenticator(conditions)
	health, err := path.NewAuthorizer(healthPaths)
	if err != nil {
		panic(err) // the paths are constants
	}
	for _, c := range []*genericapiserver.Config{
		config.KubeAPIs.ControlPlane.Generic,
		&config.ApiExtensions.GenericConfig.Config,
		&config.Aggregator.GenericConfig.Config,
	} {
		c.Authentication.Authenticator = union.NewFailOnError(c.Authentication.Authenticator, anyone)
		c.Authorization.Authorizer = authorizerunion.New(health, c.Authorization.Authorizer)
	}
}

// namespacesCheck fails until the namespaces exist that everything takes for granted.
func namespacesCheck(factory informers.SharedInformerFactory) healthz.HealthChecker {
	namespaces := factory.Core().V1().Namespaces().Lister()
	return healthz.NamedCheck("system-namespaces", func(*http.Request) error {
		for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem} {
			if _, err := namespaces.Get(name); err != nil {
				return fmt.Errorf("namespace %s: %w", name, err)
			}
		}
		return nil
	})
}
