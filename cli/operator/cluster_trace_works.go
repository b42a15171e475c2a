package operator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/platform"
	"atoll.dev/cluster"
)

// addWorks adds the delivery of the cluster's works by Maestro and the agent.
func (t *trace) addWorks(f traceFacts) {
	if f.WorksError != nil {
		t.addHop(hopMaestro, hopUnknown, time.Time{}, "the works cannot be read: %v", f.WorksError)
		return
	}
	if len(f.Works) == 0 {
		t.addHop(hopMaestro, hopUnknown, time.Time{}, "Maestro has no work of this cluster")
		return
	}
	for _, w := range f.Works {
		s := deliveryStages(w)
		for _, stage := range s.Stages {
			if stage.At == nil {
				continue
			}
			hop := hopMaestro
			if stage.Stage == "received" || stage.Stage == "applied" {
				hop = hopAgent
			}
			t.addEvent(*stage.At, hop, stage.Stage, fmt.Sprintf("%s, generation %d", w.Name, w.Generation))
		}
		d := w.Delivery
		if d == nil {
			d = &platform.Delivery{}
		}
		switch {
		case d.SentAt == nil && d.ReceivedAt == nil && d.AppliedAt == nil:
			t.addHop(hopMaestro, hopWaits, w.UpdatedAt, "%s on %s is not sent: %s", w.Name, w.ClusterID,
				cmp.Or(d.LastError, "Maestro sends it when the agent is connected"))
		default:
			t.addHop(hopMaestro, hopDone, timeOf(d.SentAt), "%s on %s, generation %d, sent %d times", w.Name, w.ClusterID,
				w.Generation, d.Attempts)
		}
		switch {
		case d.UnansweredSince != nil:
			t.addHop(hopAgent, hopWaits, *d.UnansweredSince, "%s: the agent has not answered", w.Name)
		case s.LastError != "":
			t.addHop(hopAgent, hopFailed, timeOf(d.ReceivedAt), "%s: %s", w.Name, s.LastError)
		case d.AcknowledgedGeneration < w.Generation:
			t.addHop(hopAgent, hopWaits, timeOf(d.ReceivedAt), "%s: the agent has generation %d of %d", w.Name,
				d.AcknowledgedGeneration, w.Generation)
		default:
			t.addHop(hopAgent, hopDone, timeOf(d.AppliedAt), "%s: generation %d is applied", w.Name, w.Generation)
		}
	}
}

func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// addHostedCluster adds the conditions of the HostedCluster, which the agent reports with its work. Those about
// etcd and the API server are of the plane.
func (t *trace) addHostedCluster(f traceFacts) {
	for _, w := range f.Works {
		for _, m := range w.Status.ResourceStatus.Manifests {
			if m.ResourceMeta.Kind != "HostedCluster" {
				continue
			}
			var conditions []metav1.Condition
			endpoint := ""
			for _, v := range m.StatusFeedbacks.Values {
				switch v.Name {
				case "conditions":
					_ = json.Unmarshal([]byte(feedbackText(v)), &conditions) // the hop shows that there are no conditions
				case "controlPlaneEndpoint":
					endpoint = feedbackText(v)
				}
			}
			t.addConditions(m.ResourceMeta.Namespace+"/"+m.ResourceMeta.Name, endpoint, conditions)
			return
		}
	}
	t.addHop(hopHosted, hopUnknown, time.Time{}, "the agent has not reported a HostedCluster")
	t.addHop(hopPlane, hopUnknown, time.Time{}, "it is known from the HostedCluster")
}

func (t *trace) addConditions(name, endpoint string, conditions []metav1.Condition) {
	states := map[string]*traceHop{}
	for _, c := range conditions {
		hop := hopHosted
		if strings.HasPrefix(c.Type, "Etcd") || strings.HasPrefix(c.Type, "KubeAPIServer") {
			hop = hopPlane
		}
		text := c.Type + "=" + string(c.Status)
		detail := c.Reason
		if c.Message != "" {
			detail += ": " + c.Message
		}
		t.addEvent(c.LastTransitionTime.Time, hop, text, detail)
		isGoal := c.Type == string(cluster.ConditionAvailable) || c.Type == "KubeAPIServerAvailable"
		if isGoal {
			at := c.LastTransitionTime.Time
			states[hop] = &traceHop{Hop: hop, State: hopWaits, Since: &at, Detail: text + ", " + detail}
			if c.Status == metav1.ConditionTrue {
				states[hop].State, states[hop].Detail = hopDone, text
			}
		}
	}
	for _, hop := range []string{hopHosted, hopPlane} {
		s := states[hop]
		if s == nil {
			s = &traceHop{Hop: hop, State: hopWaits, Detail: "it has no condition yet"}
			if hosted := states[hopHosted]; hop == hopPlane && hosted != nil {
				s.State, s.Since, s.Detail = hosted.State, hosted.Since, "as the HostedCluster"
			}
		}
		if hop == hopHosted {
			s.Detail = name + ": " + s.Detail
		} else if endpoint != "" {
			s.Detail += ", at " + endpoint
		}
		t.Hops = append(t.Hops, *s)
	}
}
