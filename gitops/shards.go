package gitops

import (
	"errors"
	"reflect"
	"regexp"
)

// shardsFile is the one file of a tree in the form of the ROSA regional platform.
const shardsFile = "config.yaml"

// shardFile is its shape, apart from the values.
type shardFile struct {
	Git    Git     `json:"git"` // an addition of ours: where the charts are
	Shards []shard `json:"shards"`
}

type shard struct {
	Region         string            `json:"region"`
	Environment    string            `json:"environment"`
	ConfigRevision map[string]string `json:"config_revision"`
	Values         map[string]any    `json:"values"`
}

var shardFileShape = shapeOf(reflect.TypeFor[shardFile]())

var revisionForm = regexp.MustCompile(`^[a-f0-9]{7,40}$`)

// shardCluster is the management cluster of a shard, which names none.
const shardCluster = "management-01"

// shards reads the one file. Each shard is a region without a sector and with one
// management cluster. Its values have the form of ByClusterType; keys beside the types
// of clusters are for all types.
func (l *loader) shards() (Fleet, error) {
	n, ok := l.file(shardsFile, shardFileShape)
	if !ok {
		return Fleet{}, errors.Join(l.mistakes...)
	}
	sectors := map[EnvironmentName][]SectorName{}
	var regions []declared
	if all := n.get("shards"); all == nil || len(all.items) == 0 {
		l.addMistake(n.at.errorf("the file declares no shards; add shards: [{region: NAME, environment: NAME}]"))
	} else {
		for _, item := range all.items {
			d, err := readShard(item, n.get("git"))
			if err != nil {
				l.addMistake(err)
				continue
			}
			sectors[d.environment] = nil
			regions = append(regions, d)
		}
	}
	f, err := newFleet(sectors, regions)
	if err := errors.Join(append(l.mistakes, err)...); err != nil {
		return Fleet{}, err
	}
	return f, nil
}

// readShard returns the region of a shard. git is that of the file, or nil.
func readShard(item, git *node) (declared, error) {
	region, environment := item.get("region"), item.get("environment")
	if region == nil || region.kind != text || environment == nil || environment.kind != text {
		return declared{}, item.at.errorf("the shard needs a region and an environment")
	}
	d := declared{environment: EnvironmentName(environment.value.(string)), name: RegionName(region.value.(string)),
		at: item.at}
	if err := checkName(environment.at, "environment", string(d.environment)); err != nil {
		return declared{}, err
	}
	level := &node{kind: mapping, at: item.at, members: map[string]*node{}}
	if values := item.get("values"); values != nil && values.kind == mapping {
		byType, err := shardValues(values)
		if err != nil {
			return declared{}, err
		}
		level.members["values"] = byType
	}
	cluster := &node{kind: mapping, at: item.at, members: map[string]*node{}}
	if pins := item.get("config_revision"); pins != nil && pins.kind == mapping {
		if err := setRevisions(pins, map[string]*node{"regional-cluster": level, "management-cluster": cluster}); err != nil {
			return declared{}, err
		}
	}
	if level.members["git"] != nil && cluster.members["git"] == nil { // the pin is of the regional cluster only
		unpinned := git.get("revision")
		if unpinned == nil {
			unpinned = &node{kind: deleted, at: level.members["git"].at}
		}
		cluster.members["git"] = &node{kind: mapping, at: unpinned.at, members: map[string]*node{"revision": unpinned}}
	}
	d.clusters = &node{kind: mapping, at: item.at, members: map[string]*node{shardCluster: cluster}}
	if git != nil {
		d.levels = append(d.levels, &node{kind: mapping, at: git.at, members: map[string]*node{"git": git}})
	}
	d.levels = append(d.levels, level)
	return d, nil
}

// shardValues returns the values of a shard in the form of ByClusterType.
func shardValues(values *node) (*node, error) {
	known := []string{"global", "regional-cluster", "management-cluster"}
	global := &node{kind: mapping, at: values.at}
	switch g := values.get("global"); {
	case g == nil || g.kind == deleted:
	case g.kind != mapping:
		return nil, g.at.errorf("values.global is %s; it must be a mapping", g.kind)
	default:
		global = g
	}
	others, err := merge(global, values.without(known...))
	if err != nil {
		return nil, err
	}
	byType := &node{kind: mapping, at: values.at, members: map[string]*node{"global": others}}
	for _, name := range known[1:] {
		switch v := values.get(name); {
		case v == nil || v.kind == deleted:
		case v.kind != mapping:
			return nil, v.at.errorf("values.%s is %s; it must be a mapping", name, v.kind)
		default:
			byType.members[name] = v
		}
	}
	return byType, nil
}

// setRevisions pins the level of each type of cluster to its revision.
func setRevisions(pins *node, levels map[string]*node) error {
	for _, name := range pins.keys() {
		pin, level := pins.members[name], levels[name]
		switch {
		case level == nil:
			return pin.at.errorf("config_revision.%s is of no type of cluster; known are regional-cluster and "+
				"management-cluster", name)
		case pin.kind != text || !revisionForm.MatchString(pin.value.(string)):
			return pin.at.errorf("config_revision.%s is not a commit of 7 to 40 hexadecimal digits", name)
		}
		level.members["git"] = &node{kind: mapping, at: pin.at, members: map[string]*node{"revision": pin}}
	}
	return nil
}
