package serve

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"
)

// gates are the feature gates that differ from upstream's defaults. Both are for several API servers
// that share an etcd: each announces itself by a lease that it renews every few seconds, for others
// that do not exist here.
var gates = map[string]bool{
	"APIServerIdentity":                   false,
	"UnknownVersionInteroperabilityProxy": false,
}

// setGates fixes the feature gates of all components of the process, and the minor version that they emulate: "" is
// their own.
func setGates(emulated string) error {
	if emulated != "" {
		if err := emulate(emulated); err != nil {
			return fmt.Errorf("--emulated-version: %w", err)
		}
	}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gates); err != nil {
		return fmt.Errorf("feature gates: %w", err)
	}
	if err := compatibility.DefaultComponentGlobalsRegistry.Set(); err != nil {
		return fmt.Errorf("feature gates: %w", err)
	}
	return nil
}

// emulate makes all components of the process emulate a minor version. They then offer no newer API and no newer
// feature, and store every object in a form that a control plane of that version reads.
func emulate(minor string) error {
	wanted, err := version.ParseMajorMinor(minor)
	if err != nil {
		return err
	}
	effective := compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	settable, ok := effective.(basecompatibility.MutableEffectiveVersion)
	if !ok {
		return errors.New("this version of Kubernetes emulates none")
	}
	settable.SetEmulationVersion(wanted)
	if problems := settable.Validate(); len(problems) > 0 {
		return errors.Join(problems...)
	}
	return nil
}
