package azure

import (
	"net/http"
	"strings"
)

// answerItself registers the requests that Azure Resource Manager and Entra answer themselves, and no resource
// provider: what a client reads before its first request for a resource.
func (g *Gateway) answerItself() {
	g.mux.HandleFunc("GET /metadata/endpoints", g.showEndpoints)
	g.mux.HandleFunc("GET /subscriptions", g.forCustomer(g.listSubscriptions))
	g.mux.HandleFunc("GET /subscriptions/{sub}", g.forCustomer(g.showSubscription))
	g.mux.HandleFunc("GET /tenants", g.forCustomer(g.listTenants))
}

// showEndpoints answers `az cloud register --endpoint-resource-manager`, which sends no token. The login endpoint
// is that of AD FS: of any other the clients of Azure ask login.microsoftonline.com whether it belongs to Azure.
func (g *Gateway) showEndpoints(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{"galleryEndpoint": g.o.Endpoint, "graphEndpoint": g.o.Endpoint,
		"portalEndpoint": g.o.Endpoint, "authentication": map[string]any{"loginEndpoint": g.o.Endpoint + "/" + adfs,
			"audiences": []string{g.o.Endpoint}}})
}

func (g *Gateway) listSubscriptions(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{"value": []any{g.subscription()}})
}

func (g *Gateway) showSubscription(w http.ResponseWriter, r *http.Request) {
	if id := r.PathValue("sub"); !strings.EqualFold(id, g.client.Subscription) {
		refuse(w, http.StatusNotFound, "SubscriptionNotFound", "The subscription '"+id+"' could not be found.")
		return
	}
	answer(w, http.StatusOK, g.subscription())
}

// subscription is the customer's only subscription, as ARM shows it to the customer. A resource provider sees
// another document below the same path: the subscription's life cycle.
func (g *Gateway) subscription() map[string]any {
	return map[string]any{"id": "/subscriptions/" + g.client.Subscription, "subscriptionId": g.client.Subscription,
		"tenantId": g.client.Tenant, "displayName": g.client.Location, "state": "Enabled",
		"authorizationSource": "RoleBased", "managedByTenants": []any{}}
}

func (g *Gateway) listTenants(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{"value": []any{map[string]any{"id": "/tenants/" + g.client.Tenant,
		"tenantId": g.client.Tenant, "displayName": g.client.Location}}})
}
