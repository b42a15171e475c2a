// Package bundle has the stored form of resource bundles and consumers, and the decisions about them.
//
// It renders the REST form, checks requests of clients and events of agents, and decides how an update, a deletion or
// a status changes a bundle. It does no I/O. Only package maestro and its packages import it.
package bundle
