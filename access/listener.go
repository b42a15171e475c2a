package access

import (
	"context"
	"net/http"

	"atoll.dev/internal/rest"
)

type customersKey struct{}

// WithoutOperators returns next for a listener of customers: a Router below it has no route for
// operators, so it answers such a request like one that no route matches. A request whose parameter
// makes it an action of operators is answered 404, too, also when its caller is privileged.
func WithoutOperators(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), customersKey{}, true)))
	})
}

// isForCustomers reports whether a request came to a listener of customers.
func isForCustomers(r *http.Request) bool { return r.Context().Value(customersKey{}) != nil }

// muxOf returns the routes of the listener that a request came to.
func (rt *Router) muxOf(r *http.Request) *rest.Mux {
	if isForCustomers(r) {
		return rt.customerMux
	}
	return rt.mux
}

// errNotHere is the answer to an action of operators on a listener of customers.
func errNotHere(parameter string) *rest.Error {
	return rest.Errorf(http.StatusNotFound, "not-found", "there is no parameter %s here", parameter)
}
