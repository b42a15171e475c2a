// Package request reads the bodies of the customers' requests for clusters, node
// pools and credentials, in the shape of package api/platform. It checks every
// field at once, sets the defaults of absent members, and refuses changes of
// members that cannot change.
//
// Package cluster has the rules of a cluster: the values of its spec, and
// which of them can change. This package adds the envelope of the wire (kind,
// name, ids) and the members that only ROSA's customers know (aws, creatorARN,
// members of a node pool beside nodePool).
//
// Everything here is a function of its arguments. Package front/rosa calls it;
// nothing else imports it.
package request

import (
	"encoding/json"
	"fmt"

	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
)

// New is the cluster or node pool that a body requests, with the defaults filled in.
type New struct {
	Name    string
	Project string          // target_project_id of a cluster
	Cluster cluster.ID      // of a node pool
	Spec    json.RawMessage // as it is stored
}

// Stored is a cluster or node pool that a body changes.
type Stored struct {
	ID, Name  string
	Cluster   cluster.ID // of a node pool
	Project   string     // target_project_id of a cluster
	CreatedBy string     // ARN
	Account   cluster.Account
	Spec      json.RawMessage
}

// Change is how the spec of a body changes the stored spec.
type Change uint8

const (
	Patch   Change = iota // it is a merge patch (RFC 7396)
	Replace               // it takes the place of the stored spec
)

// Kinds of documents.
const (
	kindCluster    = "Cluster"
	kindNodePool   = "NodePool"
	kindCredential = "Credential"
)

// kindRule accepts a kind. Bodies need not have one.
func kindRule(kind string) document.Rule {
	return document.String(func(s string) string {
		if s == kind {
			return ""
		}
		return document.Quote(s) + " does not belong here; this is where a " + kind + " goes"
	})
}

// decodeObject reads a body that must be an object.
func decodeObject(body []byte) (map[string]any, error) {
	v, err := document.Decode(body)
	if err != nil {
		return nil, err
	}
	doc, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the body must be an object, not %s", document.KindOf(v))
	}
	return doc, nil
}

// readEnvelope reads a body and checks its members, of which required ones must
// be there. A null is the same as no member, except for a member with a fixed
// value: to remove that is a change.
func readEnvelope(p *document.Problems, body []byte, fixed map[string]string, members map[string]document.Rule,
	required ...string) (map[string]any, error) {
	doc, err := decodeObject(body)
	if err != nil {
		return nil, err
	}
	for name, value := range doc {
		if value != nil {
			continue
		}
		delete(doc, name)
		if fixed[name] != "" {
			p.Add(name, "cannot be removed")
		}
	}
	document.Object(members)(p, "", doc)
	for _, name := range required {
		if doc[name] == nil {
			p.Add(name, "is missing")
		}
	}
	return doc, nil
}

// specOf returns the spec of a body that creates something; an empty spec when
// the body has none, nil when it is no object.
func specOf(doc map[string]any) map[string]any {
	if doc["spec"] == nil {
		return map[string]any{}
	}
	spec, _ := doc["spec"].(map[string]any)
	return spec
}

// fixedMembers returns the members of a body that identify the document, with
// their values.
func (s Stored) fixedMembers(kind string) map[string]string {
	fixed := map[string]string{
		"id": s.ID, "name": s.Name, "created_by": s.CreatedBy, "account": string(s.Account),
	}
	if kind == kindNodePool {
		fixed["cluster_id"] = string(s.Cluster)
	} else {
		fixed["target_project_id"] = s.Project
	}
	return fixed
}

// shownMembers are members of the answer to GET that a body may repeat when it
// replaces a document; they change nothing.
var shownMembers = []string{
	"generation", "resource_version", "status", "placementRef", "created_at", "updated_at", "deleted_at",
}

// members returns the rules of the members that a body which changes the
// document may have.
func (s Stored) members(kind string, change Change) map[string]document.Rule {
	members := map[string]document.Rule{"kind": kindRule(kind), "spec": document.AnyObject}
	for name, value := range s.fixedMembers(kind) {
		members[name] = func(p *document.Problems, path string, v any) {
			if v != value {
				p.Add(path, "cannot be changed")
			}
		}
	}
	if change == Replace {
		for _, name := range shownMembers {
			members[name] = document.Anything
		}
	}
	return members
}

// apply returns the stored spec and the spec after the change; after is nil when
// the body's spec is no object. restore copies stored members that a replacement
// may leave out.
func (s Stored) apply(change Change, spec any, restore func(before, after map[string]any)) (
	before, after map[string]any, err error) {
	stored, err := document.Decode(s.Spec)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the stored spec: %w", err)
	}
	before, _ = document.DropNulls(stored).(map[string]any)
	given, ok := spec.(map[string]any)
	switch {
	case !ok:
		return before, nil, nil
	case change == Patch:
		return before, document.DropNulls(document.Merge(before, given)).(map[string]any), nil
	}
	after = document.DropNulls(given).(map[string]any)
	restore(before, after)
	return before, after, nil
}

// encode returns the spec as it is stored, or the problems that were found.
func encode(p document.Problems, spec map[string]any) (json.RawMessage, document.Problems, error) {
	if len(p) > 0 {
		return nil, p.Sorted(), nil
	}
	data, err := cluster.Encode(&p, spec)
	return data, p, err
}
