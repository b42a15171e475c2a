package hypershift

import _ "embed"

// HostedClusterCRD is the CustomResourceDefinition of HostedCluster, YAML.
//
//go:embed hostedclusters.crd.yaml
var HostedClusterCRD []byte

// NodePoolCRD is the CustomResourceDefinition of NodePool, YAML.
//
//go:embed nodepools.crd.yaml
var NodePoolCRD []byte
