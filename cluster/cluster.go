// Package cluster defines a customer's cluster for all packages that handle one:
// the fronts, which check requests of customers; hosting, which runs control
// planes; and the readers of adapters' reports.
//
// It holds each rule and each word once:
//
//   - the spec of a cluster and of a node pool: which fields there are, which
//     values they take, what the service fills in, what cannot change
//     (ClusterRules, NodePoolRules, CheckCertificateRequest);
//   - networks: which networks a cluster can have (CheckNetworks);
//   - versions: from which to which version a control plane may go, and which
//     versions nodes may run (CheckUpgrade, CheckNodeVersion);
//   - a pause: how spec.pausedUntil is read (ParsePause);
//   - reports: the names of the adapters, their condition types, reasons and
//     data (Adapter, ConditionType, Reason, PlacementData, ...). The adapters
//     themselves are YAML (adapters/); a test compares the files with this list.
//
// Package cluster/progress computes a cluster's phase and events from reports.
// Package cluster/document checks JSON documents.
//
// Every function depends on its arguments only: it reads no clock and does no I/O.
// The fronts define the shape of requests and answers. This package must not
// import a front.
package cluster

import (
	"fmt"
	"regexp"

	"atoll.dev/cluster/document"
)

// ID identifies a cluster: the UUIDv7 of its resource at the lifecycle manager.
type ID string

// NodePoolID identifies a node pool: the UUIDv7 of its resource.
type NodePoolID string

// CredentialID identifies a credential of a cluster: the UUIDv7 of its resource.
type CredentialID string

// ManagementCluster is the name of a management cluster. It is also the name of
// its consumer at Maestro and never changes.
type ManagementCluster string

// ManagementClusterID identifies a management cluster: the UUIDv7 of its resource.
type ManagementClusterID string

// Account identifies a customer: the owner of clusters.
type Account string

// Longest names, in characters.
const (
	MaxNameLength         = 54 // of a cluster
	MaxNodePoolNameLength = 15
	maxHostNameLength     = 63 // of a management cluster
)

var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// Name returns a rule that accepts a name of at most maxLength characters: a-z, 0-9
// and -, with a letter or digit at both ends.
func Name(maxLength int) document.Rule {
	return document.String(func(s string) string {
		switch {
		case len(s) > maxLength:
			return fmt.Sprintf("has %d characters; %d are possible", len(s), maxLength)
		case !namePattern.MatchString(s):
			return document.Quote(s) +
				" is not possible; use a-z, 0-9 and -, beginning and ending with a letter or digit"
		}
		return ""
	})
}
