package adapters

import (
	"encoding/json"
	"fmt"

	"atoll.dev/api/hosting"
)

// situation is the input of an adapter's run.
type situation struct {
	adapter  string
	name     string
	resource object   // of the event, as CLM has it
	cluster  []object // the cluster's reports, by adapters
	own      []object // the reports on the resource, when it is not the cluster
	answers  object   // of CLM, by method and path, besides those
	found    object   // works, by name
}

// phase is whether a resource is being deleted.
type phase string

// cluster returns a cluster as CLM shows it.
func cluster(generation int, phase phase) object {
	c := object{
		"id": clusterID, "kind": "Cluster", "name": "first", "generation": generation,
		"href": "/api/hyperfleet/v1/clusters/" + clusterID,
		"spec": object{
			"hibernated": true, "creatorARN": "arn:aws:iam::123456789012:user/ada",
			"hostedCluster": object{
				"release": object{"image": "atoll.dev/release:1.36.3"},
				"networking": object{"clusterNetwork": []object{{"cidr": "10.132.0.0/14"}}, "serviceNetwork": []object{
					{"cidr": "172.31.0.0/16"}}},
				"platform": object{"type": "AWS", "aws": object{"region": "eu-west-1"}},
				"infraID":  "mine", "dns": object{"publicZoneID": "Z1"}, "channel": `stable"}, x: {`,
				"pausedUntil": "true",
			},
		},
	}
	if phase == deleting {
		c["deleted_time"] = "2026-01-02T03:04:05Z"
	}
	return c
}

// withIssuers adds two issuers of tokens to a cluster, one with certificates of its own.
func withIssuers(cluster object) object {
	spec := cluster["spec"].(object)
	spec["hostedCluster"].(object)["configuration"] = object{"apiServer": object{"audit": object{"profile": "None"}},
		"authentication": object{"type": "OIDC", "oidcProviders": []object{{"name": "mine"}}}}
	spec["authentication"] = object{"issuers": []object{
		{"url": "https://login.example.com", "audiences": []string{"atoll"}, "claimMappings": object{
			"username": object{"claim": "email", "prefixPolicy": "NoPrefix"}}},
		{"url": "https://sso.example.com/a", "audiences": []string{"kubectl", "web"},
			"certificateAuthority": "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n",
			"claimMappings": object{"username": object{"claim": "sub", "prefix": "https://sso.example.com/a#"},
				"groups": object{"claim": "groups", "prefix": "sso:"}},
			"claimValidationRules": []object{{"claim": "tenant", "requiredValue": "blue"}}},
	}}
	return cluster
}

// awaited returns a cluster with the adapters whose reports CLM awaits.
func awaited(cluster object, adapters ...string) object {
	var list []object
	for _, name := range adapters {
		list = append(list, object{"adapter": name, "since": "2026-01-02T03:04:05Z"})
	}
	cluster["status"] = object{"conditions": []object{}, "awaiting": list}
	return cluster
}

// child returns a resource below the cluster as CLM shows it.
func child(plural, name string, phase phase, spec object) object {
	c := object{"id": childID, "name": name, "generation": 3, "href": "/api/hyperfleet/v1/clusters/" + clusterID + "/" +
		plural + "/" + childID, "spec": spec}
	if phase == deleting {
		c["deleted_time"] = "2026-01-02T03:04:05Z"
	}
	return c
}

func report(adapter string, generation int, data object, conditions ...string) object {
	var list []object
	for i := 0; i+3 < len(conditions); i += 4 {
		list = append(list, object{"type": conditions[i], "status": conditions[i+1], "reason": conditions[i+2],
			"message": conditions[i+3]})
	}
	return object{"adapter": adapter, "observed_generation": generation, "conditions": list, "data": data}
}

// work is a work of Maestro with the feedback of one object.
func work(name, kind, objectName, namespace string, generation int, conditions []object, values object) object {
	var feedback []object
	for name, v := range values {
		switch v := v.(type) {
		case string:
			feedback = append(feedback, object{"name": name, "fieldValue": object{"type": "String", "string": v}})
		case int:
			feedback = append(feedback, object{"name": name, "fieldValue": object{"type": "Integer", "integer": v}})
		case object:
			raw, _ := json.Marshal(v)
			feedback = append(feedback, object{"name": name, "fieldValue": object{"type": "JsonRaw", "jsonRaw": string(raw)}})
		case []object:
			if v == nil { // a path that is not there is not fed back
				continue
			}
			raw, _ := json.Marshal(v)
			feedback = append(feedback, object{"name": name, "fieldValue": object{"type": "JsonRaw", "jsonRaw": string(raw)}})
		}
	}
	manifest := func(kind, name string) object {
		return object{"apiVersion": "v1", "kind": kind, "metadata": object{"name": name, "namespace": namespace,
			"annotations": object{"hyperfleet.io/generation": fmt.Sprint(generation)}}}
	}
	ns := manifest("Namespace", namespace)
	delete(ns["metadata"].(object), "namespace")
	return object{
		"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork",
		"metadata": object{"name": name, "namespace": "management-01", "generation": 5, "annotations": object{
			"hyperfleet.io/generation": fmt.Sprint(generation)}},
		"spec": object{"workload": object{"manifests": []object{ns, manifest(kind, objectName)}}},
		"status": object{"conditions": conditions, "resourceStatus": object{"manifests": []object{
			{"resourceMeta": object{"kind": "Namespace", "name": namespace, "namespace": ""}, "statusFeedback": object{
				"values": []object{{"name": "phase", "fieldValue": object{"type": "String", "string": "Active"}}}}},
			{"resourceMeta": object{"kind": kind, "name": objectName, "namespace": namespace}, "conditions": []object{
				{"type": "Applied", "status": conditions[0]["status"], "message": "spec.networking: overlaps"}},
				"statusFeedback": object{"values": feedback}},
		}}},
	}
}

func applied(generation int) []object {
	return []object{
		{"type": "Applied", "status": "True", "observedGeneration": generation, "message": "applied"},
		{"type": "Available", "status": "True", "observedGeneration": generation},
	}
}

func feedbackConditions(generation int, conditions ...string) (list []object) {
	for i := 0; i+3 < len(conditions); i += 4 {
		list = append(list, object{"type": conditions[i], "status": conditions[i+1], "reason": conditions[i+2],
			"message":            conditions[i+3],
			"observedGeneration": generation, "lastTransitionTime": "2026-01-02T03:04:00Z"})
	}
	return list
}

// moving is a cluster that moves from management-01 to management-02, with the present status of a side, and the move
// of which the adapter has reported the status before.
func moving(name string, resource object, phase, role string, status object, reported string) situation {
	ns, hc := hosting.Namespace(clusterID), hosting.HostedClusterName(clusterID)
	at, other, otherRole := "management-01", "management-02", "arrives"
	switch {
	case role == "recovers":
		at, other, otherRole = other, at, ""
	case role == "arrives", phase == "Ending":
		at, other, otherRole = other, at, "leaves"
	}
	before := object{"target_cluster": at, "namespace": ns, "move": object{"phase": "Moving"}}
	if reported != "" {
		before["move_status"] = object{"id": reported}
	}
	sides := object{}
	for _, side := range []string{"management-01", "management-02"} {
		values := object{"generation": 7, "of": "1",
			"conditions": feedbackConditions(7, "Available", "True", "AsExpected", "")}
		if status["role"] == "leaves" && side == "management-01" ||
			status["role"] != "leaves" && side == "management-02" {
			values["move"] = status
		}
		w := work("work-"+clusterID, "HostedCluster", hc, ns, 1, applied(5), values)
		w["metadata"].(object)["namespace"], w["spec"].(object)["manifestConfigs"] = side, []object{}
		sides[side+"/work-"+clusterID] = w
	}
	return situation{adapter: "hosted-cluster", name: name, resource: resource, cluster: []object{
		report("placement", 1, object{"management_cluster": at, "move": object{"phase": "Moving"}}, "Available", "True",
			"Placed", ""), report("hosted-cluster", 1, before, "Available", "True", "AsExpected", "")},
		found: sides, answers: object{
			"GET /clusters/" + clusterID + "/nodepools":       object{"items": []object{}, "total": 0},
			"POST /clusters/" + clusterID + "/placement/move": object{},
			"GET /clusters/" + clusterID + "/placement": object{"state": "Placed", "size": "small", "management_cluster": at,
				"move": object{"id": "m1", "from": "management-01", "to": "management-02", "phase": phase, "at": at, "other": other,
					"role": role, "other_role": otherRole}}}}
}

// without removes the work of one side of a move.
func without(side string, s situation) situation {
	delete(s.found, side+"/work-"+clusterID)
	return s
}

func situations() []situation {
	ns, hc := hosting.Namespace(clusterID), hosting.HostedClusterName(clusterID)
	placed := report("placement", 1, object{"management_cluster": "management-01"}, "Available", "True", "Placed", "")
	ordered := report("hosted-cluster", 1, object{"target_cluster": "management-01", "namespace": ns}, "Available",
		"False", "PlaneStarting", "")
	hosted := func(generation int, conditions, of []object, values object) object {
		v := object{"generation": 7, "of": fmt.Sprint(generation), "conditions": of}
		for name, x := range values {
			v[name] = x
		}
		return object{"work-" + clusterID: work("work-"+clusterID, "HostedCluster", hc, ns, generation, conditions, v)}
	}
	ready := feedbackConditions(7, "Available", "True", "AsExpected", "the API answers", "KubeAPIServerAvailable", "True",
		"AsExpected", "", "ValidReleaseImage", "True", "AsExpected", "")
	running := object{"controlPlaneEndpoint": "127.0.0.1", "port": 6443, "version": "1.36.3", "power": "Awake"}
	place := "POST /clusters/" + clusterID + "/placement"
	left := func(n int) object {
		return object{"GET /clusters/" + clusterID + "/nodepools": object{"items": []object{}, "total": n}}
	}
	lost := object{"GET /managementclusters": object{
		"items": []object{{"name": "management-01", "statuses": []object{report("maestro", 1, nil, "Available", "False",
			"Lost", "")}}}}}
	pool := object{"displayName": "w", "labels": object{"a": "b"}, "taints": []object{
		{"key": "k", "value": "v", "effect": "NoSchedule"}},
		"nodePool": object{"replicas": 2, "platform": object{"type": "AWS",
			"aws": object{"instanceType": "m6a.xlarge"}}, "release": object{"image": "atoll.dev/release:1.36.3"}}}
	credential := object{"request": "-----BEGIN CERTIFICATE REQUEST-----\nMII\n-----END CERTIFICATE REQUEST-----\n",
		"expiration_seconds": 600, "username": "ada", "expires_at": "2026-01-02T03:14:05Z"}
	key := hosting.CredentialName(childID)
	return []situation{
		{adapter: "placement", name: "is placed", resource: cluster(1, live), answers: object{place: object{
			"state": "Placed", "management_cluster": "management-01", "decided_time": "2026-01-02T03:04:05Z",
			"decision": object{"candidates": []object{}}}}},
		{adapter: "placement", name: "finds no capacity", resource: cluster(1, live), answers: object{place: object{
			"state": "Waiting", "management_cluster": "", "decision": object{"candidates": []object{
				{"name": "management-01", "fits": false, "reasons": []string{"planes: 40 of 40 are taken", "memory"}},
				{"name": "edge", "fits": false, "reasons": []string{"Cordoned"}}}},
			"reason":  "management-01: planes: 40 of 40 are taken, memory; edge: Cordoned",
			"message": "the region has no room for the cluster at present"}}},
		{adapter: "placement", name: "has no management cluster", resource: cluster(1, live),
			answers: object{place: object{
				"state": "Waiting", "management_cluster": "", "reason": "there is no management cluster",
				"message": "the region takes no new clusters at present", "decision": object{
					"candidates": []object{}}}}},
		{adapter: "placement", name: "keeps the place while it is used", resource: cluster(2, deleting), cluster: []object{
			placed,
			report("pull-secret", 2, nil, "Finalized", "True", "Gone", ""), report("hosted-cluster", 1, nil,
				"Finalized", "True", "of another generation", "")}},
		{adapter: "placement", name: "releases the place", resource: cluster(2, deleting), cluster: []object{placed,
			report("pull-secret", 2, nil, "Finalized", "True", "Gone", ""), report("hosted-cluster", 2, nil,
				"Finalized", "True", "Gone", "")}},
		{adapter: "placement", name: "keeps the place while adapters are awaited", resource: awaited(
			cluster(2, deleting), "dns", "hosted-cluster", "placement"), cluster: []object{placed}},
		{adapter: "placement", name: "releases the place without pull secrets", resource: awaited(
			cluster(2, deleting), "placement"), cluster: []object{placed,
			report("hosted-cluster", 2, nil, "Finalized", "True", "Gone", "")}},

		{adapter: "hosted-cluster", name: "trusts issuers", resource: withIssuers(cluster(1, live)),
			cluster: []object{placed}},
		{adapter: "hosted-cluster", name: "waits for its place", resource: cluster(1, live), cluster: []object{
			report("placement", 1, object{"management_cluster": ""}, "Available", "False", "NoCapacity",
				"waiting for capacity: management-01 is full")}},
		{adapter: "hosted-cluster", name: "is ordered", resource: cluster(1, live), cluster: []object{placed}},
		{adapter: "hosted-cluster", name: "was refused", resource: cluster(1, live), cluster: []object{placed},
			found: hosted(1,
				[]object{{"type": "Applied", "status": "False", "observedGeneration": 5,
					"message": "Failed to apply manifest work"}}, nil, nil)},
		{adapter: "hosted-cluster", name: "is starting", resource: cluster(1, live), cluster: []object{placed},
			found: hosted(1, applied(5),
				feedbackConditions(7, "Available", "False", "PlaneStarting", "the plane is starting", "ValidReleaseImage", "True",
					"AsExpected", ""), nil)},
		{adapter: "hosted-cluster", name: "has an unavailable version", resource: cluster(1, live), cluster: []object{
			placed}, found: hosted(1, applied(5),
			feedbackConditions(7, "Available", "False", "VersionNotAvailable", "", "ValidReleaseImage", "False",
				"VersionNotAvailable", "this management cluster has 1.36.3, not 1.99.0"), nil)},
		{adapter: "hosted-cluster", name: "runs", resource: cluster(1, live), cluster: []object{placed},
			found: hosted(1, applied(5), ready, running)},
		{adapter: "hosted-cluster", name: "needs a larger size", resource: cluster(1, live), cluster: []object{placed},
			found: hosted(1, applied(5), ready, object{"wantedSize": "medium"}), answers: object{place: object{
				"state": "Placed", "management_cluster": "management-01", "size": "medium"}}},
		{adapter: "hosted-cluster", name: "has got the room of a larger size", resource: cluster(1, live),
			cluster: []object{placed, report("hosted-cluster", 1, object{"target_cluster": "management-01", "namespace": ns,
				"size": object{"class": "small", "wanted": "medium"}, "size_ordered": "small"}, "Available", "True", "", "")},
			found: hosted(1, applied(5), ready, object{"wantedSize": "medium"}), answers: object{
				"GET /clusters/" + clusterID + "/placement": object{"state": "Placed", "size": "medium"}}},
		{adapter: "hosted-cluster", name: "needs no larger size any more", resource: cluster(1, live),
			cluster: []object{placed, report("hosted-cluster", 1, object{"target_cluster": "management-01", "namespace": ns,
				"size": object{"class": "small", "wanted": "medium"}, "size_ordered": "small"}, "Available", "True", "", "")},
			found: hosted(1, applied(5), ready, object{"wantedSize": "small"}), answers: object{
				"GET /clusters/" + clusterID + "/placement": object{"state": "Placed", "size": "small", "wanted_size": "medium"},
				place: object{"state": "Placed", "management_cluster": "management-01", "size": "small"}}},
		{adapter: "hosted-cluster", name: "runs the previous generation", resource: cluster(2, live),
			cluster: []object{placed}, found: hosted(2, applied(5),
				feedbackConditions(6, "Available", "True", "AsExpected", ""), running)},
		{adapter: "hosted-cluster", name: "runs with an unapplied change", resource: cluster(2, live),
			cluster: []object{placed}, found: hosted(2, applied(4), ready, running)},
		{adapter: "hosted-cluster", name: "was running on a lost management cluster", resource: cluster(
			1, live), cluster: []object{placed}, answers: lost, found: hosted(1, applied(5), ready, running)},
		{adapter: "hosted-cluster", name: "was starting on a lost management cluster", resource: cluster(
			1, live), cluster: []object{placed}, answers: lost},
		{
			adapter:  "hosted-cluster",
			name:     "waits for the deletion of node pools",
			resource: cluster(2, deleting),
			cluster: []object{
				placed, ordered},
			answers: left(2),
			found:   hosted(1, applied(5), ready, running),
		},
		{adapter: "hosted-cluster", name: "is deleted", resource: cluster(2, deleting), cluster: []object{placed, ordered},
			answers: left(0), found: hosted(1, applied(5), ready, running)},
		{
			adapter:  "hosted-cluster",
			name:     "has no work any more",
			resource: cluster(2, deleting),
			cluster:  []object{placed, ordered},
			answers:  left(0),
		},
		{adapter: "hosted-cluster", name: "was never placed", resource: cluster(2, deleting), answers: left(0)},
		{adapter: "hosted-cluster", name: "cannot count its node pools", resource: cluster(2, deleting), cluster: []object{
			placed, ordered}, answers: object{"GET /clusters/" + clusterID + "/nodepools": 503}},

		moving("begins to move", cluster(1, live), "Moving", "leaves", nil, ""),
		moving("has arrived", cluster(1, live), "Moving", "leaves",
			object{"id": "m1", "role": "arrives", "phase": "Arrived"}, ""),
		moving("has the status of another move", cluster(1, live), "Moving", "leaves",
			object{"id": "m0", "role": "arrives", "phase": "Arrived"}, ""),
		moving("cannot be packed", cluster(1, live), "Moving", "leaves",
			object{"id": "m1", "role": "leaves", "phase": "Failed", "message": "too large"}, ""),
		moving("is canceled before it has reported", cluster(1, live), "Canceling", "leaves", nil, ""),
		moving("is canceled", cluster(1, live), "Canceling", "leaves", nil, "m1"),
		moving("does not move", cluster(1, live), "Removing", "", nil, "m1"),
		moving("forwards", cluster(1, live), "Forwarding", "arrives", nil, ""),
		moving("forwards no more", cluster(1, live), "Ending", "arrives", nil, ""),
		without("management-02",
			moving("has nothing at the target any more", cluster(1, live), "Removing", "", nil, "m1")),
		without("management-01",
			moving("has nothing at the source any more", cluster(1, live), "Ending", "arrives", nil, "")),
		moving("is recovered", cluster(1, live), "Recovering", "recovers", nil, ""),
		moving("has been recovered", cluster(1, live), "Recovering", "recovers",
			object{"id": "m1", "role": "recovers", "phase": "Arrived"}, ""),
		moving("has been recovered, and the lost one is not back", cluster(1, live), "Ending", "recovers",
			object{"id": "m1", "role": "recovers", "phase": "Arrived"}, "m1"),
		without("management-01", moving("has nothing on the lost one any more", cluster(1, live), "Ending", "recovers",
			object{"id": "m1", "role": "recovers", "phase": "Arrived"}, "m1")),
		moving("is deleted while it moves", cluster(2, deleting), "Moving", "leaves", nil, ""),
		moving("is deleted while it forwards", cluster(2, deleting), "Forwarding", "arrives", nil, ""),

		{adapter: "pull-secret", name: "waits for the namespace", resource: cluster(1, live), cluster: []object{
			placed}},
		{adapter: "pull-secret", name: "is ordered", resource: cluster(1, live), cluster: []object{placed, ordered}},
		{adapter: "pull-secret", name: "exists", resource: cluster(1, live), cluster: []object{placed, ordered},
			found: object{"pull-secret-" + clusterID: work("pull-secret-"+clusterID,
				"ExternalSecret", "pull-secret", ns, 1, applied(5), object{"generation": 1, "of": "1",
					"conditions": feedbackConditions(1, "Ready", "True", "SecretSynced", "secret synced")})}},

		{adapter: "node-pool", name: "is ordered", resource: child("nodepools", "workers", live, pool),
			cluster: []object{placed, ordered}},
		{adapter: "node-pool", name: "has its nodes", resource: child("nodepools", "workers", live, pool),
			cluster: []object{placed, ordered}, found: object{"nodepool-" + childID: work("nodepool-"+childID,
				"NodePool", hc+"-workers", ns, 3, applied(5), object{"generation": 2, "of": "3", "replicas": 2,
					"version": "1.36.3", "conditions": feedbackConditions(2, "Ready", "True", "AsExpected",
						"2 of 2 nodes are ready")})}},
		{
			adapter:  "node-pool",
			name:     "is being deleted",
			resource: child("nodepools", "workers", deleting, pool),
			cluster: []object{
				placed, ordered},
			own: []object{report("node-pool", 2, object{"target_cluster": "management-01"})},
		},

		{adapter: "credential", name: "is ordered", resource: child("credentials", "c1", live, credential),
			cluster: []object{placed, ordered}},
		{adapter: "credential", name: "is issued", resource: child("credentials", "c1", live, credential),
			cluster: []object{placed, ordered}, found: object{"credential-" + childID: work("credential-"+childID,
				"Credential", key, ns, 3, applied(5), object{"generation": 1, "of": "3", "certificate": "PEM",
					"caBundle": "CA", "server": "https://127.0.0.1:6443", "tlsServerName": hc + ".hosted.test",
					"expires":    "2026-01-02T03:14:05Z",
					"conditions": feedbackConditions(1, "Issued", "True", "Issued", "")})}},
	}
}
