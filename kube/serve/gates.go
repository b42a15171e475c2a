package serve

import (
	"fmt"

	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// gates are the feature gates that differ from upstream's defaults. Both are for several API servers
// that share an etcd: each announces itself by a lease that it renews every few seconds, for others
// that do not exist here.
var gates = map[string]bool{
	"APIServerIdentity":                   false,
	"UnknownVersionInteroperabilityProxy": false,
}

// setGates fixes the feature gates of all components of the process.
func setGates() error {
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gates); err != nil {
		return fmt.Errorf("feature gates: %w", err)
	}
	if err := compatibility.DefaultComponentGlobalsRegistry.Set(); err != nil {
		return fmt.Errorf("feature gates: %w", err)
	}
	return nil
}
