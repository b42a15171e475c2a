package adapters

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"atoll.dev/api/hosting"
)

// Every byte of every status report stays as testdata/reports.txt has it: the lifecycle manager, the Platform API and
// customers' tools read these reports.
func TestReportsAreEqualToTheByte(t *testing.T) {
	var b bytes.Buffer
	for _, s := range append(situations(), reportSituations()...) {
		fmt.Fprintf(&b, "%s/%s\n", s.adapter, s.name)
		for _, call := range dryRun(t, s).Calls {
			if call.Method == "PUT" && strings.HasSuffix(call.URL, "/statuses") {
				fmt.Fprintf(&b, "%s\n%s\n", call.URL, call.Request)
			}
		}
		fmt.Fprintln(&b)
	}
	golden(t, "reports", b.Bytes())
}

// reportSituations are those beyond situations: where a report takes another arm of a condition.
func reportSituations() []situation {
	ns, hc := hosting.Namespace(clusterID), hosting.HostedClusterName(clusterID)
	placed := report("placement", 1, object{"management_cluster": "management-01"}, "Available", "True", "Placed", "")
	ordered := report("hosted-cluster", 1, object{"target_cluster": "management-01", "namespace": ns},
		"Available", "True", "AsExpected", "")
	full := report("hosted-cluster", 2, object{
		"target_cluster": "management-01", "namespace": ns, "version": "1.36.2", "power": "Hibernated",
		"endpoint": object{"host": "10.0.0.1", "port": 7443},
		"stages": object{
			"ordered": "2026-01-01T00:00:00.000001Z", "plane_starting": "2026-01-01T00:00:01.000001Z",
			"api_serving": "2026-01-01T00:00:02.000001Z", "ready": "",
		},
	}, "Available", "True", "AsExpected", "")
	refused := func(generation int) []object {
		return []object{{"type": "Applied", "status": "False", "observedGeneration": generation, "message": "not applied"}}
	}
	broken := object{"GET /clusters/" + clusterID + "/nodepools": 503}
	lostAndEmpty := object{
		"GET /clusters/" + clusterID + "/nodepools": object{"items": []object{}, "total": 0},
		"GET /managementclusters": object{"items": []object{{
			"name": "management-01", "statuses": []object{report("maestro", 1, nil, "Available", "False", "Lost", "")},
		}}},
	}
	hosted := func(generation int, conditions, of []object) object {
		return object{"work-" + clusterID: work("work-"+clusterID, "HostedCluster", hc, ns, generation, conditions,
			object{"generation": 7, "of": fmt.Sprint(generation), "conditions": of})}
	}
	out := []situation{
		{adapter: "placement", name: "cannot read the statuses", resource: cluster(2, deleting),
			answers: object{"GET /clusters/" + clusterID + "/statuses": 503}},
		{adapter: "placement", name: "gets no answer", resource: cluster(1, live),
			answers: object{"POST /clusters/" + clusterID + "/placement": 503}},
		{adapter: "hosted-cluster", name: "knows from before what is not fed back now", resource: cluster(2, live),
			cluster: []object{placed, full}, found: hosted(2, applied(5), nil)},
		{adapter: "hosted-cluster", name: "is invalid", resource: cluster(1, live), cluster: []object{placed},
			found: hosted(1, applied(5), feedbackConditions(7, "ValidConfiguration", "False", "Invalid", "networks overlap"))},
		{adapter: "hosted-cluster", name: "is degraded", resource: cluster(1, live), cluster: []object{placed},
			found: hosted(1, applied(5), feedbackConditions(7, "Available", "True", "AsExpected", "",
				"Degraded", "True", "X", "etcd is slow", "Progressing", "True", "Y", "step 2 of 3",
				"KubeAPIServerAvailable", "True", "AsExpected", ""))},
		{adapter: "hosted-cluster", name: "has conditions without a generation", resource: cluster(1, live),
			cluster: []object{placed},
			found:   hosted(1, applied(5), []object{{"type": "Available", "status": "True", "reason": ""}})},
		{adapter: "hosted-cluster", name: "was available and cannot tell now", resource: cluster(2, deleting),
			cluster: []object{placed, full}, answers: broken, found: hosted(2, applied(5), nil)},
		{adapter: "hosted-cluster", name: "is deleted on a lost management cluster", resource: cluster(2, deleting),
			cluster: []object{placed, full}, found: hosted(2, applied(5), nil), answers: lostAndEmpty},
	}
	for _, c := range []struct {
		adapter, resource, work, kind, object, ready string
		spec                                         object
	}{
		{"pull-secret", "", "pull-secret-" + clusterID, "ExternalSecret", "pull-secret", "Ready", nil},
		{"node-pool", "nodepools", "nodepool-" + childID, "NodePool", hc + "-workers", "Ready",
			object{"replicas": 1, "autoRepair": true, "labels": object{"x": "y"}}},
		{"credential", "credentials", "credential-" + childID, "Credential", hosting.CredentialName(childID), "Issued",
			object{"request": "PEM", "expiration_seconds": 600, "username": "ada"}},
	} {
		resource := func(phase phase) object {
			if c.resource == "" {
				return cluster(3, phase)
			}
			return child(c.resource, "workers", phase, c.spec)
		}
		found := func(conditions []object, of ...object) object {
			return object{c.work: work(c.work, c.kind, c.object, ns, 3, conditions,
				object{"generation": 2, "of": "3", "conditions": of})}
		}
		before := func(generation int) []object {
			return []object{report(c.adapter, generation, object{
				"target_cluster": "edge-01", "replicas": 4, "version": "1.36.1", "certificate": "OLD", "ca_bundle": "CA",
				"server": "S", "tls_server_name": "N", "expires_at": "2026-01-01T00:00:00Z",
				"conditions": feedbackConditions(1, c.ready, "True", "AsExpected", ""),
			}, "Available", "True", "AsExpected", "")}
		}
		add := func(name string, s situation) {
			s.adapter, s.name = c.adapter, name
			if s.cluster == nil {
				s.cluster = []object{placed, ordered}
			}
			if c.resource == "" {
				s.cluster, s.own = append(s.own, s.cluster...), nil
			}
			out = append(out, s)
		}
		add("waits for the control plane", situation{resource: resource(live), cluster: []object{placed}})
		add("is refused", situation{resource: resource(live), found: found(refused(5))})
		add("is not applied yet", situation{resource: resource(live), found: found(applied(4))})
		add("is pending", situation{resource: resource(live), found: found(applied(5))})
		add("is not ready", situation{resource: resource(live),
			found: found(applied(5), feedbackConditions(2, c.ready, "False", "Scaling", "1 of 2")...)})
		add("is acting on a change", situation{resource: resource(live), own: before(3),
			found: found(applied(5), feedbackConditions(1, c.ready, "True", "AsExpected", "2 of 2")...)})
		add("has a condition without a generation", situation{resource: resource(live),
			found: found(applied(5), object{"type": c.ready, "status": "True"})})
		add("is deleted", situation{resource: resource(deleting), own: before(2), found: found(applied(5))})
		add("has no work any more", situation{resource: resource(deleting), own: before(2)})
		add("never had a control plane", situation{resource: resource(deleting), cluster: []object{placed}})
	}
	return append(out, exampleSituations(ns)...)
}

// exampleSituations are those of the examples.
func exampleSituations(ns string) []situation {
	labelled := func(generation int, phase phase) object {
		c := cluster(generation, phase)
		c["labels"] = object{"atoll.dev/management-cluster": "edge-02"}
		return c
	}
	name := "cl-maestro-" + clusterID
	found := object{name: work(name, "ConfigMap", "cluster-config", ns, 1, applied(5), nil)}
	namespace := func(phase string) object {
		return object{"hf-" + clusterID: object{
			"apiVersion": "v1", "kind": "Namespace", "status": object{"phase": phase},
			"metadata": object{"name": "hf-" + clusterID, "annotations": object{"hyperfleet.io/generation": "1"}},
		}}
	}
	pool := child("nodepools", "workers", live, object{"replicas": 1})
	return []situation{
		{adapter: "cl-maestro", name: "has no management cluster", resource: cluster(1, live)},
		{adapter: "cl-maestro", name: "is ordered", resource: labelled(1, live)},
		{adapter: "cl-maestro", name: "exists", resource: labelled(1, live), found: found},
		{adapter: "cl-maestro", name: "is deleted", resource: labelled(2, deleting), found: found},
		{adapter: "cl-maestro", name: "has no work any more", resource: labelled(2, deleting)},
		{adapter: "cl-maestro", name: "was ordered elsewhere", resource: labelled(2, deleting),
			cluster: []object{report("cl-maestro", 1, object{"target_cluster": "edge-01"})}},
		{adapter: "cl-namespace", name: "makes a namespace", resource: cluster(1, live)},
		{adapter: "cl-namespace", name: "has a namespace", resource: cluster(1, live), found: namespace("Active")},
		{adapter: "cl-namespace", name: "has no work any more", resource: cluster(2, deleting)},
		{adapter: "np-configmap", name: "makes a ConfigMap", resource: pool},
		{
			adapter:  "np-configmap",
			name:     "has no work any more",
			resource: child("nodepools", "workers", deleting, object{"replicas": 1}),
		},
	}
}

// A golden report is a JSON object: a failed dry run that reports nothing would go unseen otherwise.
func TestEverySituationIsReported(t *testing.T) {
	for _, s := range append(situations(), reportSituations()...) {
		reports := 0
		for _, call := range dryRun(t, s).Calls {
			var body object
			if call.Method == "PUT" && json.Unmarshal(call.Request, &body) == nil && body["adapter"] == s.adapter {
				reports++
			}
		}
		if reports != 1 {
			t.Errorf("%s/%s: %d reports", s.adapter, s.name, reports)
		}
	}
}
