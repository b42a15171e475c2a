package rosa

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"atoll.dev/access/policy"
	"atoll.dev/api/clm"
	"atoll.dev/api/platform"
	"atoll.dev/client/clmclient"
	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
	"atoll.dev/internal/rest"
)

// rotateClusterKey orders a step of the rotation of a key.
func (h *customerAPI) rotateClusterKey(c *exchange) error {
	id, err := c.readClusterID()
	if err != nil {
		return err
	}
	body, err := c.readBody()
	if err != nil {
		return err
	}
	want, problems, err := readRotation(body)
	if err := c.refusal(problems, err); err != nil {
		return err
	}
	key := cluster.RotatedKey(want.Key)
	var order cluster.RotationOrder
	var report cluster.RotationData
	to := target{clusters, string(id), nounCluster, ""}
	err = h.updateSpec(c, to, func(have clmclient.Resource) (json.RawMessage, error) {
		if err := c.checkChange("CreateRotation", policy.Cluster, have, have); err != nil {
			return nil, err
		}
		read, err := h.clm.GetWithStatuses(c.ctx, clusters, string(id))
		if err != nil {
			return nil, err
		}
		spec, orders, err := cluster.CutRotations(have.Spec)
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", id, err)
		}
		report = cluster.Reports(read.Statuses).HostedCluster().RotationReports()[key]
		if order, err = c.nextRotation(have, want, orders[key], report); err != nil {
			return nil, err
		}
		if orders == nil {
			orders = cluster.Rotations{}
		}
		orders[key] = order
		return cluster.AddRotations(spec, orders)
	})
	if err != nil {
		return err
	}
	return c.write(http.StatusAccepted, "", toRotation(key, order, report))
}

// nextRotation returns the order that a request makes after the last one for the same key. The error is the answer to a
// step out of order. A repeated request makes the last order again.
func (c *exchange) nextRotation(have clmclient.Resource, want platform.RotationRequest, last cluster.RotationOrder,
	report cluster.RotationData) (cluster.RotationOrder, error) {
	if report.ID != last.ID { // the management cluster has not answered to the last order yet
		report = cluster.RotationData{}
	}
	isPrepare := want.Step == platform.RotationRequestStepPrepare
	isOver := last.ID == "" || report.Phase == cluster.RotationFailed ||
		last.Step == cluster.RotationComplete && report.Phase == cluster.RotationCompleted
	made := c.newOrderID(cluster.ID(have.ID))
	switch {
	case isPrepare && last.ID == made: // a try after a lost answer
		return last, nil
	case isPrepare && isOver:
		return cluster.RotationOrder{ID: made, Step: cluster.RotationPrepare}, nil
	case isPrepare:
		return last, c.errorf(http.StatusConflict, codeOutOfOrder,
			"the last rotation of the %s key of the cluster %s is %s; complete it before another one",
			want.Key, have.Name, phaseOf(last, report))
	case last.ID != "" && last.Step == cluster.RotationComplete && report.Phase != cluster.RotationFailed:
		return last, nil
	case report.Phase == cluster.RotationPrepared:
		return cluster.RotationOrder{ID: last.ID, Step: cluster.RotationComplete}, nil
	case isOver:
		return last, c.errorf(http.StatusConflict, codeOutOfOrder,
			"no rotation of the %s key of the cluster %s is prepared; order the step prepare first", want.Key, have.Name)
	}
	return last, c.errorf(http.StatusConflict, codeOutOfOrder,
		"the rotation of the %s key of the cluster %s is %s; wait for Prepared (status.rotations of GET "+
			"/api/v0/clusters/%s)", want.Key, have.Name, phaseOf(last, report), have.ID)
}

// phaseOf returns the phase of a rotation. Before the management cluster has answered, the order decides it.
func phaseOf(order cluster.RotationOrder, report cluster.RotationData) platform.RotationPhase {
	isReported := report.ID == order.ID
	switch {
	case isReported && report.IsFinal():
	case order.Step == cluster.RotationComplete:
		return platform.RotationPhaseCompleting
	case !isReported || report.Phase == "":
		return platform.RotationPhasePreparing
	}
	return platform.RotationPhase(report.Phase)
}

// toRotations returns the last rotation of each key of a cluster.
func toRotations(r clm.Resource) (list []platform.Rotation) {
	_, orders, err := cluster.CutRotations(r.Spec)
	if err != nil {
		return nil
	}
	reports := cluster.Reports(r.Statuses).HostedCluster().RotationReports()
	for _, key := range cluster.RotatedKeys {
		if order, isOrdered := orders[key]; isOrdered {
			list = append(list, toRotation(key, order, reports[key]))
		}
	}
	return list
}

// toRotation gives an order, and the report on it if there is one, the shape of the wire.
func toRotation(key cluster.RotatedKey, order cluster.RotationOrder, report cluster.RotationData) platform.Rotation {
	shown := platform.Rotation{ID: order.ID, Key: platform.RotatedKey(key), Phase: phaseOf(order, report)}
	if report.ID != order.ID {
		return shown
	}
	if string(shown.Phase) == report.Phase {
		shown.Message = report.Message
	}
	for _, at := range []struct {
		text string
		to   **time.Time
	}{
		{report.PreparingAt, &shown.PreparingAt}, {report.PreparedAt, &shown.PreparedAt},
		{report.CompletingAt, &shown.CompletingAt}, {report.CompletedAt, &shown.CompletedAt},
	} {
		if t, err := time.Parse(time.RFC3339, at.text); err == nil {
			*at.to = &t
		}
	}
	return shown
}

// readRotation reads the body of an order.
func readRotation(body []byte) (want platform.RotationRequest, p document.Problems, err error) {
	decoded, err := document.Decode(body)
	if err != nil {
		return want, nil, err
	}
	document.Object(map[string]document.Rule{
		"key":  document.OneOf(string(cluster.ServiceAccountKey), string(cluster.EncryptionKey)),
		"step": document.OneOf(string(cluster.RotationPrepare), string(cluster.RotationComplete)),
	})(&p, "", decoded)
	if len(p) > 0 {
		return want, p.Sorted(), nil
	}
	if err := json.Unmarshal(body, &want); err != nil {
		return want, nil, rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "the body is no order of a rotation: %s", err)
	}
	if want.Key == "" {
		p.Add("key", "is missing: service-account or encryption")
	}
	if want.Step == "" {
		p.Add("step", "is missing: prepare or complete")
	}
	return want, p, nil
}
