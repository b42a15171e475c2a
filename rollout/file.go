package rollout

import (
	"time"
)

// Rollout is the file of a rollout. Its comments are the documentation of the keys: schema.json is made from them.
type Rollout struct {
	// Environment whose regions the change reaches.
	Environment string `yaml:"environment"`
	// What changes in the configuration of each region.
	Change Change `yaml:"change"`
	// Sectors that the change reaches, in the order of the environment. Without them all sectors.
	Sectors []string `yaml:"sectors"`
	// Regions (REGION) and management clusters (REGION/CLUSTER) that get the change first, before the other regions of
	// their sector.
	Canaries []string `yaml:"canaries"`
	// Shares of a sector's regions in percent, growing: [10, 50] is a wave until a tenth of the regions have the
	// change, a wave until half of them have it, and a wave for the rest.
	Shares []int `yaml:"shares"`
	// How many regions and canary clusters may be in flight at once: changed, and not healthy yet. Without it 1.
	MaxInFlight int `yaml:"maxInFlight"`
	// How long gates must pass after a wave and after a sector before the next begins.
	Soak Soak `yaml:"soak"`
	// How long a region usually needs until its gates pass. The plan calculates with it. Without it 10m, or settle where
	// that is longer.
	Expected time.Duration `yaml:"expected"`
	// How long after its change a region is not healthy yet, whatever its gates read: until then they may read its old
	// state. Argo CD looks for a new commit every 3 minutes. Without it 10m.
	Settle time.Duration `yaml:"settle"`
	// How long a region may be in flight before the rollout stops. Without it 1h.
	Deadline time.Duration `yaml:"deadline"`
	// Sectors that begin only after `atoll rollout approve`.
	Approval []string `yaml:"approval"`
	// Times at which no region is changed. Gates are read during these times too.
	Freeze []Freeze `yaml:"freeze"`
	// What a failing gate does: stop, or revert. Without it stop.
	OnFailure string `yaml:"onFailure"`
	// URL of the Prometheus server that gates ask, with $region and $sector for the names of a region.
	Prometheus string `yaml:"prometheus"`
	// Checks of the health of each changed region. At least one.
	Gates []Gate `yaml:"gates"`

	file  string
	lines map[string]int // of the values, by path: gates[0].atLeast
}

// Change is the change that a rollout makes in the configuration of each region. Its keys can be combined.
type Change struct {
	// Commit, tag or branch of the charts and values: git.revision.
	Revision string `yaml:"revision"`
	// Version of Atoll's services: versions.atoll.
	Version string `yaml:"version"`
	// Values by their keys in the configuration, such as values.global.logLevel.
	Set map[string]any `yaml:"set"`
}

// Soak is how long gates must pass without a pause. Time without readable gates does not count.
type Soak struct {
	// After each wave but the last of a sector.
	Wave time.Duration `yaml:"wave"`
	// After the last wave of a sector.
	Sector time.Duration `yaml:"sector"`
}

// Freeze is a time at which no region is changed: each week ("Fri 16:00"), each day ("18:00"), or once
// ("2026-12-20 00:00").
type Freeze struct {
	// When it begins.
	From string `yaml:"from"`
	// When it ends, in the same form.
	To string `yaml:"to"`
	// Time zone of both, such as Europe/Berlin. Without it UTC.
	Zone string `yaml:"zone"`
}

// Gate is a check of the health of one region: a query, a burn, or a url. In each, $region, $sector and $cluster stand
// for the names of the region that is checked. $cluster is the ID of a canary cluster, and .+ for a region: write
// cluster=~"$cluster".
type Gate struct {
	// Name of the gate, which errors and the record show.
	Name string `yaml:"name"`
	// Query of Prometheus with one value.
	Query string `yaml:"query"`
	// The gate passes when the value of the query is at least this.
	AtLeast *float64 `yaml:"atLeast"`
	// The gate passes when the value of the query is at most this.
	AtMost *float64 `yaml:"atMost"`
	// Error budget that the region must not burn too fast.
	Burn *Burn `yaml:"burn"`
	// URL of the region's status, such as https://api.$region.example.com/api/v0/ready. The gate passes when it answers
	// 200, and fails with each other answer.
	URL string `yaml:"url"`
}

// Burn is a limit of how fast a region uses up its error budget. The gate fails when both windows burn faster than
// the factor: the long window shows that it matters, and the short one that it still goes on.
type Burn struct {
	// Query of the share of failed requests, with $window for the window.
	Query string `yaml:"query"`
	// Share of requests that must succeed, such as 0.999.
	Objective float64 `yaml:"objective"`
	// The short window. Without it 5m.
	Short time.Duration `yaml:"short"`
	// The long window. Without it 1h.
	Long time.Duration `yaml:"long"`
	// How many times faster than the objective permits. Without it 14.4, which uses up the budget of 30 days in 50 hours.
	Factor float64 `yaml:"factor"`
}
