package controlplane

// WarmNamespace is the namespace of warm planes and of slots. No namespace of Kubernetes can have this name, so no
// HostedCluster is in it.
const WarmNamespace = "_warm"

// IsWarm reports whether the control plane is a warm plane: it runs and belongs to no cluster yet. It has no
// HostedCluster, status, route or backup, and it is in no list and no count of planes.
func (id ID) IsWarm() bool { return id.Namespace == WarmNamespace }
