package rosa

import (
	"encoding/json"
	"fmt"
	"net/http"

	"atoll.dev/access/policy"
	"atoll.dev/api/platform"
	"atoll.dev/api/rotation"
	"atoll.dev/client/clmclient"
	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
)

// rotateClusterKey orders a step of the rotation of a key.
func (h *customerAPI) rotateClusterKey(c *exchange) error {
	id, want, err := readOrder(c, parseRotation)
	if err != nil {
		return err
	}
	key := rotation.Key(want.Key)
	var order rotation.Order
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
func (c *exchange) nextRotation(have clmclient.Resource, want platform.RotationRequest, last rotation.Order,
	report cluster.RotationData) (rotation.Order, error) {
	if report.ID != last.ID { // the management cluster has not answered to the last order yet
		report = cluster.RotationData{}
	}
	isPrepare := want.Step == platform.RotationRequestStepPrepare
	isOver := last.ID == "" || report.Phase == rotation.Failed ||
		last.Step == rotation.Complete && report.Phase == rotation.Completed
	made := c.newOrderID(cluster.ID(have.ID))
	switch {
	case isPrepare && last.ID == made: // a try after a lost answer
		return last, nil
	case isPrepare && isOver:
		return rotation.Order{ID: made, Step: rotation.Prepare}, nil
	case isPrepare:
		return last, c.errorf(http.StatusConflict, codeOutOfOrder,
			"the last rotation of the %s key of the cluster %s is %s; complete it before another one",
			want.Key, have.Name, phaseOf(last, report))
	case last.ID != "" && last.Step == rotation.Complete && report.Phase != rotation.Failed:
		return last, nil
	case report.Phase == rotation.Prepared:
		return rotation.Order{ID: last.ID, Step: rotation.Complete}, nil
	case isOver:
		return last, c.errorf(http.StatusConflict, codeOutOfOrder,
			"no rotation of the %s key of the cluster %s is prepared; order the step prepare first", want.Key, have.Name)
	}
	return last, c.errorf(http.StatusConflict, codeOutOfOrder,
		"the rotation of the %s key of the cluster %s is %s; wait for Prepared (status.rotations of GET "+
			"/api/v0/clusters/%s)", want.Key, have.Name, phaseOf(last, report), have.ID)
}

// phaseOf returns the phase of a rotation. Before the management cluster has answered, the order decides it.
func phaseOf(order rotation.Order, report cluster.RotationData) platform.RotationPhase {
	isReported := report.ID == order.ID
	switch {
	case isReported && report.Phase.IsFinal():
	case order.Step == rotation.Complete:
		return platform.RotationPhaseCompleting
	case !isReported || report.Phase == "":
		return platform.RotationPhasePreparing
	}
	return platform.RotationPhase(report.Phase)
}

// toRotations returns the last rotation of each key of a cluster.
func toRotations(spec json.RawMessage, reports map[rotation.Key]cluster.RotationData) (list []platform.Rotation) {
	_, orders, err := cluster.CutRotations(spec)
	if err != nil {
		return nil
	}
	for _, key := range rotation.Keys {
		if order, isOrdered := orders[key]; isOrdered {
			list = append(list, toRotation(key, order, reports[key]))
		}
	}
	return list
}

// toRotation gives an order, and the report on it if there is one, the shape of the wire.
func toRotation(key rotation.Key, order rotation.Order, report cluster.RotationData) platform.Rotation {
	shown := platform.Rotation{ID: order.ID, Key: platform.RotatedKey(key), Phase: phaseOf(order, report)}
	if report.ID != order.ID {
		return shown
	}
	if shown.Phase == platform.RotationPhase(report.Phase) {
		shown.Message = report.Message
	}
	shown.PreparingAt, shown.PreparedAt = timeOf(report.PreparingAt), timeOf(report.PreparedAt)
	shown.CompletingAt, shown.CompletedAt = timeOf(report.CompletingAt), timeOf(report.CompletedAt)
	return shown
}

// parseRotation reads the body of an order.
func parseRotation(body []byte) (want platform.RotationRequest, p document.Problems, err error) {
	want, p, err = parseOrder[platform.RotationRequest](body, "a rotation", map[string]document.Rule{
		"key":  document.OneOf(string(rotation.ServiceAccountKey), string(rotation.EncryptionKey), string(rotation.CAKey)),
		"step": document.OneOf(string(rotation.Prepare), string(rotation.Complete)),
	})
	if err != nil || len(p) > 0 {
		return want, p, err
	}
	if want.Key == "" {
		p.Add("key", "is missing: service-account, encryption or ca")
	}
	if want.Step == "" {
		p.Add("step", "is missing: prepare or complete")
	}
	return want, p, nil
}
