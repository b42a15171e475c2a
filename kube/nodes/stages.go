package nodes

import (
	"fmt"

	"sigs.k8s.io/kwok/kustomize/stage/node/fast"
	heartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podfast "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	"sigs.k8s.io/kwok/pkg/apis/internalversion"
	"sigs.k8s.io/kwok/pkg/apis/v1alpha1"
	"sigs.k8s.io/kwok/pkg/utils/lifecycle"
	"sigs.k8s.io/yaml"
)

// stages returns what happens to nodes and to pods: KWOK's stages without delays.
func stages() (nodes, pods lifecycle.Lifecycle, err error) {
	if nodes, err = parse(fast.DefaultNodeInit, heartbeat.DefaultNodeHeartbeatWithLease); err != nil {
		return nil, nil, err
	}
	pods, err = parse(podfast.DefaultPodReady, podfast.DefaultPodComplete, podfast.DefaultPodDelete)
	return nodes, pods, err
}

func parse(documents ...string) (lifecycle.Lifecycle, error) {
	var parsed []*internalversion.Stage
	for _, document := range documents {
		var external v1alpha1.Stage
		if err := yaml.UnmarshalStrict([]byte(document), &external); err != nil {
			return nil, fmt.Errorf("a stage: %w", err)
		}
		stage, err := internalversion.ConvertToInternalStage(&external)
		if err != nil {
			return nil, fmt.Errorf("stage %s: %w", external.Name, err)
		}
		parsed = append(parsed, stage)
	}
	cycle, err := lifecycle.NewLifecycle(parsed)
	if err != nil {
		return nil, fmt.Errorf("stages: %w", err)
	}
	return cycle, nil
}
