package client

import (
	"atoll.dev/api/work"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
)

// The types of identifiers. The types of api/platform have the same texts as strings: convert them, as in
// ClusterID(c.ID).
type (
	ClusterID             = cluster.ID
	NodePoolID            = cluster.NodePoolID
	CredentialID          = cluster.CredentialID
	AccountID             = cluster.Account
	ManagementClusterName = cluster.ManagementCluster
	WorkID                = work.ID
)

// Error is the error of a call that the region refused or did not answer.
type Error = remote.Error

// CodeUnreachable is the Code of an Error when the region did not answer.
const CodeUnreachable = remote.CodeUnreachable

// StatusOf returns the HTTP status of an Error, and 0 of any other error.
func StatusOf(err error) int { return remote.StatusOf(err) }

// ListOptions select one page of a list.
type ListOptions = remote.ListOptions

// WatchOptions select the objects of a watch and its beginning.
type WatchOptions = remote.WatchOptions

// Watch is one open stream of changes.
type Watch = remote.Watch

// Event is one change in a watch. Its Object is the JSON of the object after the change.
type Event = remote.Event

// Types of events.
const (
	Added    = rest.Added    // the object exists, or was created
	Modified = rest.Modified // the object changed
	Deleted  = rest.Deleted  // the object was deleted, or the watch does not select it any more
	Bookmark = rest.Bookmark // no change: a later watch can continue from Cursor
	Failed   = rest.Failed   // the stream ends with this error
	Relist   = remote.Relist // Follow functions only: changes may be missing; all existing objects come next, as Added
)
