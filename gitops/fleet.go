package gitops

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"atoll.dev/cluster"
)

// Names of the environments, sectors, regions and clusters that a tree declares. Each is a DNS label.
type (
	EnvironmentName string
	SectorName      string
	RegionName      string
	ClusterName     string // of a management cluster, within its region
)

// Fleet is everything that a tree declares, complete and checked.
type Fleet struct {
	Environments []Environment // by name
}

// Environment is a set of regions that changes reach in the order of its sectors.
type Environment struct {
	Name    EnvironmentName
	Sectors []SectorName // in the order in which changes reach them
	Regions []Region     // by name
}

// Region is a declared region with all that it inherits.
type Region struct {
	Environment EnvironmentName
	Name        RegionName
	Sector      SectorName // empty in a tree of shards
	Settings    Settings
	Clusters    []Cluster // its management clusters, by name
	at          Position
	settings    *node
}

// Cluster is a declared management cluster with all that it inherits.
type Cluster struct {
	Region   RegionName
	Name     ClusterName
	Settings Settings
	at       Position
	settings *node
}

// ID is the name by which the region registers the management cluster, which is its
// consumer name too: mc01-eu-west-1.
func (c Cluster) ID() string { return string(c.Name) + "-" + string(c.Region) }

// regionalID is the name of the regional cluster.
func (r Region) regionalID() string { return "regional-" + string(r.Name) }

// Regions returns the regions of all environments.
func (f Fleet) Regions() []Region {
	var all []Region
	for _, e := range f.Environments {
		all = append(all, e.Regions...)
	}
	return all
}

// ErrNoRegion: the tree does not declare the region.
var ErrNoRegion = errors.New("the tree declares no region")

// Region finds a region by its name, or by ENVIRONMENT/NAME where several environments
// have one of the name. The error lists the existing regions.
func (f Fleet) Region(name string) (Region, error) {
	var found []string
	var region Region
	for _, r := range f.Regions() {
		full := string(r.Environment) + "/" + string(r.Name)
		if full == name || string(r.Name) == name {
			found, region = append(found, full), r
		}
	}
	switch {
	case len(found) == 0:
		return Region{}, fmt.Errorf("%w %s", ErrNoRegion, name)
	case len(found) > 1:
		return Region{}, fmt.Errorf("several regions have the name %s; use one of %s", name, strings.Join(found, ", "))
	}
	return region, nil
}

// Cluster finds a management cluster of the region by its name or its ID.
func (r Region) Cluster(name string) (Cluster, error) {
	for _, c := range r.Clusters {
		if string(c.Name) == name || c.ID() == name {
			return c, nil
		}
	}
	return Cluster{}, fmt.Errorf("the region %s declares no management cluster %s", r.Name, name)
}

var (
	nameForm    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	accountForm = regexp.MustCompile(`^[0-9]{12}$`)
	tagForm     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	releaseForm = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.-]+)?$`) // as package release has it
	commitForm  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,199}$`)
)

// maxID is the longest ID of a management cluster: it is a Kubernetes label and the
// common name of a certificate.
const maxID = 63

// declared is a region as its file declares it, before it inherits.
type declared struct {
	environment EnvironmentName
	name        RegionName
	sector      SectorName
	levels      []*node // from the most general to that of the region
	clusters    *node   // mapping of the management clusters, or nil
	at          Position
}

// resolve returns the region with all that it inherits.
func (d declared) resolve() (Region, error) {
	if err := checkName(d.at, "region", string(d.name)); err != nil {
		return Region{}, err
	}
	r := Region{Environment: d.environment, Name: d.name, Sector: d.sector, at: d.at}
	var err error
	r.settings = defaultSettings()
	for _, level := range d.levels {
		if r.settings, err = merge(r.settings, level); err != nil {
			return Region{}, err
		}
	}
	if r.Settings, err = decode(r.settings); err != nil {
		return Region{}, d.at.errorf("region %s: %w", d.name, err)
	}
	r.Settings.AWS.Region = cmp.Or(r.Settings.AWS.Region, string(d.name))
	mistakes := []error{checkSettings(r.settings, r.Settings), checkGit(d.at, "region", d.name, r.Settings.Git)}
	if d.clusters != nil {
		for _, name := range d.clusters.keys() {
			own := d.clusters.members[name]
			if own.kind == deleted {
				own = &node{kind: mapping, at: own.at} // mc01: declares a cluster with the settings of the region
			}
			c, err := r.cluster(ClusterName(name), own)
			mistakes = append(mistakes, err)
			r.Clusters = append(r.Clusters, c)
		}
	}
	return r, errors.Join(mistakes...)
}

// cluster returns a management cluster that sets own. It does not inherit the account of
// the regional cluster: each cluster is in an account of its own.
func (r Region) cluster(name ClusterName, own *node) (Cluster, error) {
	c := Cluster{Region: r.Name, Name: name, at: own.at}
	if err := checkName(own.at, "management cluster", string(name)); err != nil {
		return c, err
	}
	if c.ID() == r.regionalID() {
		return c, own.at.errorf("the management cluster %s has the ID of the regional cluster, %s; use another name", name,
			c.ID())
	}
	if id := c.ID(); len(id) > maxID {
		return c, own.at.errorf("the name %s of the management cluster has %d characters; %d are possible", id, len(id),
			maxID)
	}
	base := *r.settings
	if aws := base.get("aws"); aws != nil && aws.kind == mapping {
		base = *base.without("aws")
		base.members["aws"] = aws.without("accountId")
	}
	var err error
	if c.settings, err = merge(&base, own); err != nil {
		return c, err
	}
	if c.Settings, err = decode(c.settings); err != nil {
		return c, own.at.errorf("management cluster %s: %w", name, err)
	}
	c.Settings.AWS.Region = cmp.Or(c.Settings.AWS.Region, string(r.Name))
	return c, errors.Join(checkSettings(c.settings, c.Settings),
		checkGit(own.at, "management cluster", name, c.Settings.Git))
}

// checkGit refuses a region or a management cluster that has no repository or branch, also where it
// deletes those that it inherits.
func checkGit[T ~string](at Position, what string, name T, git Git) error {
	switch {
	case git.Repository == "":
		return at.errorf("the %s %s has no git.repository; set it in defaults.yaml", what, name)
	case git.Branch == "":
		return at.errorf("the %s %s has no git.branch", what, name)
	}
	return nil
}

// checkSettings checks values that must have a form, each at the place that set it.
func checkSettings(n *node, s Settings) error {
	var mistakes []error
	check := func(ok bool, value string, reason string, path ...string) {
		if set := n.get(path...); set != nil && value != "" && !ok {
			mistakes = append(mistakes, set.at.errorf("%s is %q; %s", strings.Join(path, "."), value, reason))
		}
	}
	account := s.AWS.AccountID
	references, _ := References(account)
	isReference := len(references) == 1 && references[0].String() == account
	check(isReference || accountForm.MatchString(account), account,
		"it must be 12 digits in quotes or a reference", "aws", "accountId")
	check(commitForm.MatchString(s.Git.Branch), s.Git.Branch, "it must be a commit, a tag or a branch", "git", "branch")
	check(commitForm.MatchString(s.Git.Revision), s.Git.Revision, "it must be a commit, a tag or a branch", "git",
		"revision")
	check(isBelowRoot(s.Git.Charts), s.Git.Charts, "it must be a directory of the repository", "git", "charts")
	check(isBelowRoot(s.Git.Rendered), s.Git.Rendered, "it must be a directory of the repository", "git", "rendered")
	shown := s.Services.PlacementShownTo
	check(shown == "operators" || shown == "customers", shown, "it must be operators or customers", "services",
		"placementShownTo")
	_, err := cluster.ParseRecoverLostAfter(s.Services.RecoverLostAfter)
	check(err == nil, s.Services.RecoverLostAfter, "it must be whole minutes, such as 30m or 1h30m, at least 5m, or 0",
		"services", "recoverLostAfter")
	check(tagForm.MatchString(s.Versions.Atoll), s.Versions.Atoll, "it must be the tag of an image", "versions", "atoll")
	checkReleases := func(releases []string, path ...string) {
		for i, r := range releases {
			if !releaseForm.MatchString(r) {
				mistakes = append(mistakes, n.get(path...).items[i].at.errorf("%s has %q; a release is like 1.36.3",
					strings.Join(path, "."), r))
			}
		}
	}
	checkReleases(s.Versions.Releases, "versions", "releases")
	checkReleases(s.ManagementCluster.Releases, "managementCluster", "releases")
	for _, resource := range slices.Sorted(maps.Keys(s.ManagementCluster.Capacity)) {
		n := s.ManagementCluster.Capacity[resource]
		check(n >= 0, fmt.Sprint(n), "it must not be negative", "managementCluster", "capacity", resource)
	}
	return errors.Join(mistakes...)
}

// isBelowRoot reports whether a path is relative and stays within the repository. Argo CD reads it as
// a pattern, so it has no characters of patterns.
func isBelowRoot(dir string) bool {
	return fs.ValidPath(path.Clean(dir)) && !strings.ContainsAny(dir, `*?[]{}\`)
}

func checkName(at Position, what, name string) error {
	if nameForm.MatchString(name) {
		return nil
	}
	return at.errorf("%q does not name a valid %s; use at most 63 small letters, digits and -", name, what)
}

// decode returns the settings of a node whose shape was checked.
func decode(n *node) (Settings, error) {
	var s Settings
	b, err := json.Marshal(n.plain())
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber() // free-form data keeps digits that no float64 has
		err = d.Decode(&s)
	}
	s.Services.PlacementShownTo = cmp.Or(s.Services.PlacementShownTo, "operators") // also where a level deletes it
	if after, err := cluster.ParseRecoverLostAfter(s.Services.RecoverLostAfter); err == nil {
		s.Services.RecoverLostAfter = cluster.FormatRecoverLostAfter(after) // the only form that the charts accept
	}
	return s, err
}

// resolution is the result of resolve.
type resolution struct {
	region Region
	err    error
}

// resolveAll resolves declared regions, several at once, and returns the results in the same order.
func resolveAll(all []declared) []resolution {
	results := make([]resolution, len(all))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, d := range all {
		group.Go(func() error {
			results[i].region, results[i].err = d.resolve()
			return nil
		})
	}
	_ = group.Wait() // each result has its error
	return results
}

// newFleet resolves the declared regions, and makes the checks that need all of them.
func newFleet(sectors map[EnvironmentName][]SectorName, all []declared) (Fleet, error) {
	var mistakes []error
	regions := map[EnvironmentName][]Region{}
	seen := map[string]Position{}
	resolved := resolveAll(all)
	for i, d := range all {
		full := string(d.environment) + "/" + string(d.name)
		if first, twice := seen[full]; twice {
			mistakes = append(mistakes, d.at.errorf("the region %s is declared twice; first at %s", full, first))
			continue
		}
		seen[full] = d.at
		if err := resolved[i].err; err != nil {
			mistakes = append(mistakes, err)
			continue
		}
		regions[d.environment] = append(regions[d.environment], resolved[i].region)
	}
	f := Fleet{}
	for name, order := range sectors {
		e := Environment{Name: name, Sectors: order, Regions: regions[name]}
		slices.SortFunc(e.Regions, func(a, b Region) int { return cmp.Compare(a.Name, b.Name) })
		f.Environments = append(f.Environments, e)
	}
	slices.SortFunc(f.Environments, func(a, b Environment) int { return cmp.Compare(a.Name, b.Name) })
	mistakes = append(mistakes, f.checkAccounts())
	if err := joinDistinct(mistakes); err != nil {
		return Fleet{}, err
	}
	return f, nil
}

// joinDistinct joins errors, each once. All regions below a level have its mistakes.
func joinDistinct(all []error) error {
	var distinct []error
	seen := map[string]bool{}
	var add func(error)
	add = func(err error) {
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, each := range joined.Unwrap() {
				add(each)
			}
			return
		}
		if err != nil && !seen[err.Error()] {
			seen[err.Error()] = true
			distinct = append(distinct, err)
		}
	}
	for _, err := range all {
		add(err)
	}
	return errors.Join(distinct...)
}

// checkAccounts refuses an account that two clusters share: a region must not have rights in another region. A
// management cluster in the account of the regional cluster could take its rights.
func (f Fleet) checkAccounts() error {
	type owner struct {
		region, cluster string
		at              Position
	}
	var mistakes []error
	owners := map[string]owner{}
	use := func(region, cluster string, n *node, account string) {
		if account == "" {
			return
		}
		at := n.get("aws", "accountId").at
		switch first, taken := owners[account]; {
		case !taken:
			owners[account] = owner{region, cluster, at}
		case first.region != region:
			mistakes = append(mistakes, at.errorf("the account %s is of the region %s, at %s; a region shares no account",
				account, first.region, first.at))
		default:
			mistakes = append(mistakes, at.errorf("the account %s is of the %s, at %s; each cluster has an account of its own",
				account, first.cluster, first.at))
		}
	}
	for _, r := range f.Regions() {
		full := string(r.Environment) + "/" + string(r.Name)
		use(full, "regional cluster", r.settings, r.Settings.AWS.AccountID)
		for _, c := range r.Clusters {
			use(full, "management cluster "+string(c.Name), c.settings, c.Settings.AWS.AccountID)
		}
	}
	return errors.Join(mistakes...)
}
