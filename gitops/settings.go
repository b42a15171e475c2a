package gitops

// Settings are the keys that each level may set. A region inherits those of its
// sector, of its environment and of the defaults; a management cluster inherits
// those of its region.
//
// The comments are the documentation of the keys: schema.json, the JSON Schema of
// all files, is made from them.
type Settings struct {
	// Where Argo CD finds the charts and these settings, and which revision of both a cluster runs.
	Git Git `json:"git"`
	// The region of AWS and the accounts that a region and its management clusters are in.
	AWS AWS `json:"aws"`
	// The public names of a region.
	DNS DNS `json:"dns"`
	// The versions that run: images and charts of the services, and the releases that customers
	// may choose.
	Versions Versions `json:"versions"`
	// What fleet registers for a management cluster.
	ManagementCluster ManagementClusterSettings `json:"managementCluster"`
	// Options of the region's services.
	Services Services `json:"services"`
	// Variables of Terraform, by the type of cluster.
	Terraform ByClusterType `json:"terraform"`
	// Values of Helm, by the type of cluster. Each chart reads its own keys of them.
	Values ByClusterType `json:"values"`
}

// Git is a revision in a repository.
type Git struct {
	// URL of the repository that has the charts and the rendered files.
	Repository string `json:"repository"`
	// Branch that the root application of each cluster follows.
	Branch string `json:"branch"`
	// Commit, tag or branch of the charts and of the values, which are pinned together. Without it
	// both follow the branch.
	Revision string `json:"revision"`
	// Directory of the repository that has the charts: CHARTS/regional-cluster, CHARTS/management-
	// cluster and CHARTS/shared.
	Charts string `json:"charts"`
	// Directory of the repository that has the rendered files.
	Rendered string `json:"rendered"`
}

// AWS is where a region runs.
type AWS struct {
	// Region of AWS. Without it, it is the name of the region, so that two regions of Atoll can be
	// in one region of AWS.
	Region string `json:"region"`
	// Account of the regional cluster, or of the management cluster: 12 digits in quotes, or a
	// reference such as ${ssm:///infra/eu-west-1/account}.
	AccountID string `json:"accountId"`
}

// DNS is the names of a region.
type DNS struct {
	// Domain below which the region's API has its name: api.REGION.DOMAIN.
	Domain string `json:"domain"`
}

// Versions are the versions of the programs, charts and releases that run.
type Versions struct {
	// Version of Atoll's services, the tag of their images.
	Atoll string `json:"atoll,omitempty"`
	// Images by the name of the service, where one differs from the version of Atoll.
	Images map[string]string `json:"images,omitempty"`
	// Versions of charts that come from a registry and not from the repository, by the name of the
	// chart.
	Charts map[string]string `json:"charts,omitempty"`
	// Releases of Kubernetes or OpenShift that customers may choose, the newest first.
	Releases []string `json:"releases,omitempty"`
}

// ManagementClusterSettings are the settings of a management cluster that fleet registers.
type ManagementClusterSettings struct {
	// Labels that customers and operators select management clusters by.
	Labels map[string]string `json:"labels,omitempty"`
	// What the management cluster has room for, by resource: planes, memory_mib.
	Capacity map[string]int64 `json:"capacity,omitempty"`
	// Releases that can run there. Without them every release can.
	Releases []string `json:"releases,omitempty"`
	// Cordoned: clusters stay, and no new ones are placed there.
	Cordoned bool `json:"cordoned,omitempty"`
}

// Services are options of the region's services.
type Services struct {
	// Endpoint of the MQTT broker, host and port. Without it the region runs its own broker.
	Broker string `json:"broker,omitempty"`
	// Replicas by the name of the service: platform, clm, adapter, maestro.
	Replicas map[string]int64 `json:"replicas,omitempty"`
	// URL of a collector of traces by OTLP over HTTP.
	Traces string `json:"traces,omitempty"`
	// Who is shown the name of a cluster's management cluster: operators or customers.
	PlacementShownTo string `json:"placementShownTo"`
	// Time in whole minutes such as 30m or 1h30m, at least 5m. When the agent of a management cluster has been
	// lost for so long, the region recovers its clusters on others from their backups. 0 or none: an operator does.
	RecoverLostAfter string `json:"recoverLostAfter,omitempty"`
}

// ByClusterType is free-form data. A cluster gets the data of Global merged with that of
// its type.
type ByClusterType struct {
	// For clusters of every type.
	Global map[string]any `json:"global"`
	// For regional clusters.
	RegionalCluster map[string]any `json:"regional-cluster"`
	// For management clusters.
	ManagementCluster map[string]any `json:"management-cluster"`
}

// regionKeys are the keys that only the file of a region has, beside its Settings.
type regionKeys struct {
	// Sector of the region; its environment lists it.
	Sector string `json:"sector"`
	// Management clusters of the region by their names, each with the settings in which it differs
	// from the region.
	ManagementClusters map[string]Settings `json:"managementClusters"`
}

// environmentKeys are the keys that only the file of an environment has, beside its
// Settings.
type environmentKeys struct {
	// Sectors of the environment, in the order in which changes reach them.
	Sectors []string `json:"sectors"`
}

// defaultSettings returns the settings that apply when a tree sets no others.
func defaultSettings() *node {
	at := Position{"(built in)", 0}
	of := func(v string) *node { return &node{kind: text, value: v, at: at} }
	return &node{kind: mapping, at: at, members: map[string]*node{
		"git": {kind: mapping, at: at, members: map[string]*node{
			"branch": of("main"), "charts": of("deploy/charts"), "rendered": of("deploy"),
		}},
		"services": {kind: mapping, at: at, members: map[string]*node{"placementShownTo": of("operators")}},
	}}
}
